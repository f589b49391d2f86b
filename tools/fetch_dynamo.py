"""Install Dynamo's mocker, by package name, in a virtual environment in .cache/dynamo/.

The mocker serves SGLang's native `/generate` endpoint without a GPU. Its packages declare many more
dependencies than it imports, so they are installed without dependencies, and only the imported
packages are added. SGLang is installed for the definition of its protocol only: the rest of it
needs a GPU.
"""

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "dynamo"
PYTHON = FOLDER / "bin" / "python"
VERSION = "1.6.1"
PACKAGES = (f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}")
DESCRIPTION = "sglang==0.5.23"
IMPORTED = ("msgspec", "packaging", "pydantic<=2.13.5", "pyyaml", "uvloop")
DONE = FOLDER / ".complete"
TIMEOUT = 600


def main() -> int:
    if not DONE.exists():
        print(f"installing {' and '.join(PACKAGES)}", flush=True)
        try:
            venv.create(FOLDER, with_pip=True, clear=True)
            install("--no-deps", *PACKAGES)
            install(*IMPORTED)
            run("-m", "dynamo.mocker", "--version")
        except (OSError, subprocess.SubprocessError) as fault:
            print(f"Dynamo's mocker cannot be had: {fault}")
            return 1
        describe()
        DONE.touch()
    print(PYTHON)
    return 0


def describe() -> None:
    """SGLang has wheels for few platforms: where there is none, one test is skipped."""
    try:
        install("--no-deps", DESCRIPTION)
    except (OSError, subprocess.SubprocessError) as fault:
        print(f"{DESCRIPTION} cannot be had: {fault}")


def install(*what: str) -> None:
    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def run(*command: str) -> None:
    done = subprocess.run(
        [PYTHON, *command], timeout=TIMEOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(lines[-1] if lines else "the command failed without output")


if __name__ == "__main__":
    sys.exit(main())
