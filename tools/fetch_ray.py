"""Install Ray Serve and the dependencies of Dovetail in .cache/ray/venv/, for `make test-ray`.

Ray pins versions of its own and takes 500 MB. Dovetail itself is not installed there: tests put its
sources on the path, so that one environment serves several clones.
"""

import sys
import tomllib
from pathlib import Path

from environments import CACHE, make  # type: ignore[import-not-found]  # in the same folder

ROOT = Path(__file__).resolve().parent.parent
RAY = "ray[serve]==2.60.0"
OPTIONAL = ("redis>=5", "tiktoken>=0.9", "tokenizers>=0.21")
CHECK = (
    "import ray, msgspec, uvloop, xxhash, tokenizers; "
    "from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter; "
    "print('Ray', ray.__version__, 'is there')"
)


def dependencies() -> tuple[str, ...]:
    """Return the dependencies of the application that are not its own distributions."""
    text = (ROOT / "packages" / "dovetail" / "pyproject.toml").read_text("utf-8")
    hook = tomllib.loads(text)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return tuple(hook["others"])


if __name__ == "__main__":
    packages = (RAY, *dependencies(), *OPTIONAL)
    sys.exit(make(CACHE / "ray" / "venv", packages, CHECK))
