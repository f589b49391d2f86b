"""Fetch the real clients that tests run, by package name, into .cache/harnesses/.

`npm install` does the fetching, without running anything of the packages. What cannot be had costs
one line; the tests that need it then skip, and say so.
"""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "harnesses"
PACKAGES = ("@anthropic-ai/claude-code", "@openai/codex")
QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
TIMEOUT = 600


def main() -> int:
    npm = shutil.which("npm")
    if npm is None:
        print("npm is not installed: the tests with real clients will be skipped")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if (FOLDER / "node_modules" / package).is_dir():
            print(f"{package} is there")
            continue
        print(f"fetching {package} with npm", flush=True)
        command = [npm, "install", *QUIET, "--prefix", str(FOLDER), package]
        try:
            subprocess.run(command, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{package}: not fetched ({type(error).__name__})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
