"""Create separate virtual environments for packages that pin their own dependencies."""

import shutil
import subprocess
import venv
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"
TIMEOUT = 1800


def make(
    folder: Path, packages: tuple[str, ...], check: str, unwanted: tuple[str, ...] = ()
) -> int:
    """Create an environment in which `check` runs, or reuse it. Returns the exit status."""
    python = folder / "bin" / "python"
    if python.exists() and _run([str(python), "-c", check]):
        return 0
    venv.create(folder, with_pip=True, clear=True)
    uv = shutil.which("uv")
    pip = [str(python), "-m", "pip"]
    install = [uv, "pip", "install", "--python", str(python)] if uv else [*pip, "install"]
    print(f"downloading {packages[0]} and its dependencies: about 1 GB", flush=True)
    if uv is None and not _run([*pip, "install", "-q", "--upgrade", "pip"]):
        print("pip could not be updated: resolving with an old version takes many minutes")
    done = _run([*install, "-q", *packages])
    if done and unwanted:
        done = _run([*pip, "uninstall", "-q", "-y", *unwanted])
    return 0 if done and _run([str(python), "-c", check]) else 1


def _run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, timeout=TIMEOUT).returncode == 0
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{command[0]}: {type(error).__name__}")
        return False
