"""Fetch axe-core, which checks pages for accessibility, by package name into .cache/axe/.

`npm install` downloads the package without running its scripts. One file of it is copied.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "axe"
PACKAGE = "axe-core"
VERSION = "4.14.0"
FILE = "axe.min.js"
QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
TIMEOUT = 600


def main() -> int:
    note = FOLDER / "version"
    if (FOLDER / FILE).is_file() and note.is_file() and note.read_text() == VERSION:
        return 0
    npm = shutil.which("npm")
    if npm is None:
        print("*** npm is not installed: A TEST OF THE WEB UI WILL BE SKIPPED ***")
        return 0
    print(f"fetching {PACKAGE}@{VERSION} with npm", flush=True)
    try:
        fetch(npm)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"*** not fetched ({type(error).__name__}): A TEST OF THE WEB UI WILL BE SKIPPED ***")
    return 0


def fetch(npm: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "install", "--prefix", scratch, *QUIET, f"{PACKAGE}@{VERSION}"]
        subprocess.run(command, check=True, timeout=TIMEOUT)
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(scratch) / "node_modules" / PACKAGE / FILE, FOLDER / FILE)
        (FOLDER / "version").write_text(VERSION)


if __name__ == "__main__":
    sys.exit(main())
