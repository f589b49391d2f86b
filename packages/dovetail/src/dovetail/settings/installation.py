"""Locations and commands of this installation."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for weights, keys and the ledger. It may not exist yet."""
    variables = os.environ if environment is None else environment
    if home := variables.get("DOVETAIL_HOME"):
        return Path(home).expanduser()
    if shared := variables.get("XDG_DATA_HOME"):
        return Path(shared).expanduser() / "dovetail"
    return Path.home() / ".local" / "share" / "dovetail"


def install_command(extra: str) -> str:
    """Return the shell command that installs an optional extra."""
    return f"pip install 'dovetail[{extra}]'"
