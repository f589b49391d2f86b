"""Install Dynamo's index of KV events and the dependencies of Dovetail in .cache/kv/venv/.

It is what `dovetail[kv]` installs, for `make test-fleet`. Dovetail itself is not installed there:
tests put its sources on the path, so that one environment serves several clones.
"""

import sys

from environments import CACHE, make  # type: ignore[import-not-found]  # in the same folder
from fetch_ray import OPTIONAL, dependencies  # type: ignore[import-not-found]

RUNTIME = "ai-dynamo-runtime==1.6.1"
CHECK = (
    "import msgspec, redis, tokenizers, uvloop, xxhash; from dynamo.llm import SelectionService; "
    "print('the index of KV events is there')"
)

if __name__ == "__main__":
    packages = (RUNTIME, *dependencies(), *OPTIONAL)
    sys.exit(make(CACHE / "kv" / "venv", packages, CHECK))
