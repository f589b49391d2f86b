"""Run the tests with real clients: the newest versions, and the pinned ones. Print a table.

    python tools/test_clients.py [--only NAME ...] [--newest] [--json FILE]

npm and pip resolve the newest versions by package name when the tool runs, so the result changes
with time: this is not a part of CI. A client whose newest version is the pinned one runs once.
The exit status is 1 if a test failed with a newest version.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from importlib.metadata import version as installed_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fetch_harnesses import (  # type: ignore[import-not-found]  # in the same folder
    FOLDER,
    HARNESSES,
    TIMEOUT,
    fetch,
)

ROOT = Path(__file__).resolve().parent.parent
NEWEST = ROOT / ".cache" / "newest-clients"
TESTS = ROOT / "tests" / "harness"
#: Files with tests of several clients, whose names contain the client's.
SHARED_FILES = (
    "test_images.py",
    "test_secured.py",
    "test_server_restart.py",
    "test_side_requests.py",
)
#: The test files of each client.
SUITES: Mapping[str, Sequence[str]] = {
    "claude": ("test_claude_code_*.py", *SHARED_FILES),
    "codex": ("test_codex_*.py", *SHARED_FILES),
    "opencode": ("test_opencode*.py", *SHARED_FILES),
    "openclaw": ("test_openclaw.py",),
    "pi": ("test_pi.py",),
    "sdks": ("test_sdk_runners.py", "test_openai_agents.py"),
}
SDKS = ("anthropic", "openai", "openai-agents")


@dataclass(frozen=True)
class Version:
    """A version of a client, and the variables with which the tests use it."""

    client: str
    version: str
    kind: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a suite, as `tests/harness/support/harness_runs.py` reports it."""

    version: Version
    passed: int
    failed: Sequence[tuple[str, str]]
    skipped: int
    loop_steps: int
    reprefilled: int


def main() -> int:
    arguments = _parse_arguments()
    npm = shutil.which("npm")
    outcomes = []
    for client in arguments.only or SUITES:
        for version in _find_versions(client, npm):
            if arguments.newest and version.kind == "pinned":
                continue
            print(f"--- {version.client} {version.version} ({version.kind})", flush=True)
            outcomes.append(run_suite(version))
    for line in format_table(outcomes):
        print(line)
    if arguments.json:
        found = [{**vars(one), "version": vars(one.version)} for one in outcomes]
        arguments.json.write_text(json.dumps(found, indent=1))
    return any(one.failed for one in outcomes if one.version.kind != "pinned")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=list(SUITES), help="clients to test")
    parser.add_argument("--newest", action="store_true", help="skip the pinned versions")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    return parser.parse_args()


def _find_versions(client: str, npm: str | None) -> Iterator[Version]:
    """Yield the pinned and the newest version of a client, or one if both are the same."""
    if client == "sdks":
        yield from _find_sdk_versions()
    elif npm is None:
        print(f"*** {client}: npm is not installed ***")
    else:
        try:
            yield from _fetch_versions(client, npm)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"*** {client}: not fetched ({error}) ***")


def _fetch_versions(client: str, npm: str) -> Iterator[Version]:
    pinned = HARNESSES[client]
    newest = pinned.newest
    command = [npm, "view", newest.package, "version", "--loglevel=error"]
    latest = subprocess.check_output(command, text=True, timeout=TIMEOUT).strip()
    same = latest == pinned.version and newest is pinned
    fetch(npm, client, pinned, pinned.version)
    kind = "pinned, newest" if same else "pinned"
    yield Version(client, pinned.version, kind, {"DOVETAIL_HARNESSES": str(FOLDER / "bin")})
    if not same:
        fetch(npm, client, newest, latest, NEWEST)
        yield Version(client, latest, "newest", {"DOVETAIL_HARNESSES": str(NEWEST / "bin")})


def _find_sdk_versions() -> Iterator[Version]:
    """Yield the installed SDKs, and the newest ones in a folder before them on Python's path."""
    folder = NEWEST / "sdks"
    shutil.rmtree(folder, ignore_errors=True)
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "-q"] if uv else [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*install, "--target", str(folder), *SDKS], check=True, timeout=TIMEOUT)
    found = {one.name: one.version for one in distributions(path=[str(folder)])}
    installed = {name: installed_version(name) for name in SDKS}
    newest = {name: found[name] for name in SDKS}
    same = installed == newest
    yield Version("sdks", _join(installed), "pinned, newest" if same else "pinned")
    if not same:
        yield Version("sdks", _join(newest), "newest", {"PYTHONPATH": str(folder)})


def _join(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def run_suite(version: Version) -> Outcome:
    """Run the tests of a client in a network namespace with only loopback."""
    files = [path for name in SUITES[version.client] for path in sorted(TESTS.glob(name))]
    has_shared = set(SHARED_FILES) <= set(SUITES[version.client])
    selection = ["-k", version.client] if has_shared else []
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, str(ROOT / "tools" / "loopback_only.py")),
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", *selection, *map(str, files)),
        ]
        environment = {
            **os.environ,
            **version.environment,
            "DOVETAIL_CLIENT_REPORT": str(report),
        }
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        return read_outcome(version, report)


def read_outcome(version: Version, report: Path) -> Outcome:
    """Read the report of a suite. A suite that wrote none counts as failed."""
    if not report.is_file():
        return Outcome(version, 0, [("the suite", "pytest did not finish")], 0, 0, 0)
    found: dict[str, Any] = json.loads(report.read_text())
    return Outcome(
        version,
        passed=len(found["passed"]),
        failed=[(test, reason) for test, reason in found["failed"]],
        skipped=len(found["skipped"]),
        loop_steps=sum(steps for _, steps, _ in found["loops"]),
        reprefilled=sum(tokens for _, _, tokens in found["loops"]),
    )


HEADINGS = (
    "client",
    "version",
    "",
    "passed",
    "failed",
    "skipped",
    "tool-loop requests",
    "re-prefilled tokens",
)


def format_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Format the outcomes as a table in Markdown, and the failures below it."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{'---|' * len(HEADINGS)}"
    for one in outcomes:
        version = one.version
        figures = (one.passed, len(one.failed), one.skipped, one.loop_steps, one.reprefilled)
        cells = (version.client, version.version, version.kind, *map("{:,}".format, figures))
        yield f"| {' | '.join(cells)} |"
    for one in outcomes:
        for test, reason in one.failed:
            yield f"{one.version.client} {one.version.version}: {test}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
