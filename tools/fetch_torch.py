"""Fetch torch and transformers for CPUs, by package name, in .cache/torch/venv/, for `make test`.

They have an environment of their own, as on many a GPU machine: Dovetail is not installed in it,
only what its engine process imports. Triton's interpreter runs our kernels without a GPU.
"""

import sys

from environments import CACHE, make  # type: ignore[import-not-found]  # it lies beside this

PACKAGES = (
    "transformers>=5.17",
    "torch==2.13.0",  # a build for CPUs is at hand
    "triton",
    "accelerate",
    "llguidance",
    "msgspec",
    "uvicorn",
    "httptools",
    "h11",
)
CHECK = "import torch, transformers; print('transformers', transformers.__version__, 'is there')"

if __name__ == "__main__":
    sys.exit(make(CACHE / "torch" / "venv", PACKAGES, CHECK))
