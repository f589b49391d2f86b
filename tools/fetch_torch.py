"""Install torch and transformers for CPUs in .cache/torch/venv/, for `make test-transformers`.

They have their own virtual environment, as on many GPU machines: it contains only the packages that
the engine process imports, not Dovetail. Triton's interpreter runs our kernels without a GPU.
"""

import sys

from environments import CACHE, make  # type: ignore[import-not-found]  # in the same folder

PACKAGES = (
    "transformers>=5.17",
    "torch==2.13.0",  # available as a build for CPUs
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
