"""The fields of `Config`: their defaults and help texts."""

from dataclasses import field
from typing import Any


def setting(default: Any, help: str, *, per_model: bool = False) -> Any:
    """Return a field with its help text. A mutable default is created per config."""
    metadata = {"help": help, "per_model": per_model}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def model_setting(default: Any, help: str) -> Any:
    """Return a field for a setting that may differ from model to model."""
    return setting(default, help, per_model=True)
