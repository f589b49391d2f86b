"""Where things are kept on this machine."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The folder of weights, keys and turns. It may not exist yet."""
    named = os.environ if environment is None else environment
    if home := named.get("DOVETAIL_HOME"):
        return Path(home).expanduser()
    if shared := named.get("XDG_DATA_HOME"):
        return Path(shared).expanduser() / "dovetail"
    return Path.home() / ".local" / "share" / "dovetail"


def install_command(extra: str) -> str:
    """A command for any shell. Who reads it has Dovetail: pip adds to the one that is there."""
    return f"pip install 'dovetail[{extra}]'"
