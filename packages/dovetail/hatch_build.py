"""The sibling packages as dependencies: beside this one in a checkout, by version elsewhere.

`pip install ./packages/dovetail` in a clone takes its siblings from the clone. Where they are
installed by themselves, as `make` does, or come from an index, DOVETAIL_SIBLINGS=index asks for
them by version.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
BY_VERSION = "~=0.1.0"


class SiblingHook(MetadataHookInterface):
    """Fills in the dependencies that `pyproject.toml` lists for it."""

    def update(self, metadata: dict[str, Any]) -> None:
        config = self.config
        siblings = [_sibling(name) for name in config["siblings"]]
        metadata["dependencies"] = [*siblings, *config["others"]]


def _sibling(name: str) -> str:
    distribution = name.partition("[")[0]
    folder = HERE.parent / distribution.removeprefix("dovetail-")
    if os.environ.get("DOVETAIL_SIBLINGS") == "index" or not (folder / "pyproject.toml").is_file():
        return f"{name}{BY_VERSION}"
    return f"{name} @ {folder.resolve().as_uri()}"
