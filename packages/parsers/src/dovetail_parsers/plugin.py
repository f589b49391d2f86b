"""Parsers of third parties, found by entry point when a name is not one of ours."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from dovetail_parsers.registry import is_known

ENTRY_POINT_GROUP = "dovetail.families"


@cache
def find_plugin(name: str | None) -> Callable[..., Any] | None:
    """The factory registered under this name, called with `tools` and `in_reasoning`."""
    if name is None:
        return None
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not found:
        return None
    if is_known(name) or len(found) > 1:
        raise ValueError(f"the name {name!r} is registered twice as a parser")
    factory: Callable[..., Any] = found[0].load()
    return factory
