"""Parser plugins: packages that register a family, or a factory of parsers, by entry point.

The entry point's name is the parser's name. It refers to a `Family`, which gets everything that
built-in families have (detection by model id and template, the writer, guided decoding), or to a
callable that is called with `tools` and `in_reasoning` and returns a `StreamParser`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dovetail_parsers.families import FAMILIES
from dovetail_parsers.family import Family

ENTRY_POINT_GROUP = "dovetail.families"


def find_plugin(name: str | None) -> Callable[..., Any] | None:
    """Return the factory that is registered under this name, if there is one."""
    plugin = load_plugins().get(name) if name else None
    return None if isinstance(plugin, Family) else plugin


def plugin_families() -> tuple[Family, ...]:
    """Return the families that plugins register."""
    return tuple(plugin for plugin in load_plugins().values() if isinstance(plugin, Family))


@cache
def load_plugins() -> Mapping[str, Any]:
    """Load every plugin once. Raise ValueError for a name that is taken or a failing import."""
    plugins: dict[str, Any] = {}
    taken = {name for family in FAMILIES for name in _names(family)}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        plugin = _load(point)
        for name in {point.name, *(_names(plugin) if isinstance(plugin, Family) else ())}:
            if name in taken:
                raise ValueError(
                    f"The parser name {name!r} of plugin {point.value!r} is already registered."
                )
            taken.add(name)
        plugins[point.name] = plugin
    return plugins


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise ValueError(
            f"Parser plugin {point.name!r} ({point.value}) failed to load: {error}"
        ) from error


def _names(family: Family) -> tuple[str, ...]:
    return (*family.tool_names, *family.reasoning_names)
