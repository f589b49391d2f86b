"""Web search as OpenAI's APIs declare it: as a tool of Responses, or by an option of Chat."""

import re
from typing import Any

import msgspec

from dovetail_model import ServerTool
from dovetail_protocols.request_body import convert

SEARCH_NAME, FETCH_NAME = "web_search", "web_fetch"
_SEARCH_TYPE = re.compile(r"web_search(_preview)?(_\d{4}_\d{2}_\d{2})?")

_USED_FIELDS = frozenset(("type", "filters", "user_location"))


class SearchFilters(msgspec.Struct, frozen=True):
    """The domains of the results."""

    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class WebSearchIn(msgspec.Struct, frozen=True):
    """The options of a search. Chat nests the location in `approximate`."""

    filters: SearchFilters | None = None
    user_location: dict[str, Any] | None = None


def is_web_search(type: object) -> bool:
    """Return whether this is the type of a web search."""
    return isinstance(type, str) and _SEARCH_TYPE.fullmatch(type) is not None


def decode_web_search(
    value: object, path: str, type: str, position: int = 0
) -> tuple[ServerTool, ...]:
    """Decode a web search. The model may also open pages, which both APIs count as a part of it."""
    options = convert(value, WebSearchIn, path)
    filters = options.filters or SearchFilters()
    location = options.user_location or {}
    nested = location.get("approximate")
    fields = value if isinstance(value, dict) else {}
    search = ServerTool(
        kind="web_search",
        name=SEARCH_NAME,
        type=type,
        field=path,
        position=position,
        allowed_domains=tuple(filters.allowed_domains or ()),
        blocked_domains=tuple(filters.blocked_domains or ()),
        location=(nested if isinstance(nested, dict) else location) or None,
        unused=tuple(f"{path}.{name}" for name in fields if name not in _USED_FIELDS),
    )
    fetch = msgspec.structs.replace(
        search, kind="web_fetch", name=FETCH_NAME, implied=True, unused=()
    )
    return search, fetch
