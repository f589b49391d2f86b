"""Pages of lists of items."""

from collections.abc import Sequence
from typing import Any

from dovetail_model import InvalidRequest
from dovetail_protocols import encode_items

_DEFAULT_PAGE_ITEMS, _MAX_PAGE_ITEMS = 20, 100

Query = dict[str, str]
Item = dict[str, Any]


def check_page(query: Query) -> None:
    """Raise `InvalidRequest` if the parameters of a page are invalid."""
    limit = parse_int(query, "limit", _DEFAULT_PAGE_ITEMS)
    if not 1 <= limit <= _MAX_PAGE_ITEMS:
        raise InvalidRequest(
            f"`limit` must be between 1 and {_MAX_PAGE_ITEMS}, got {limit}", param="limit"
        )
    if query.get("order", "desc") not in ("asc", "desc"):
        raise InvalidRequest("`order` must be `asc` or `desc`", param="order")


def encode_page(items: Sequence[Item], query: Query) -> bytes:
    """Encode one page of items, which are given with the oldest first."""
    check_page(query)
    limit = parse_int(query, "limit", _DEFAULT_PAGE_ITEMS)
    if query.get("order", "desc") == "desc":
        items = items[::-1]
    start = _index_after(items, query.get("after"))
    more = start + limit < len(items)
    return encode_items(items[start : start + limit], has_more=more)


def parse_int(query: Query, name: str, default: int) -> int:
    value = query.get(name)
    if value is None:
        return default
    if not value.isdecimal() or len(value) > 9:
        raise InvalidRequest(f"`{name}` must be a number of at most 9 digits", param=name)
    return int(value)


def _index_after(items: Sequence[Item], after: str | None) -> int:
    if after is None:
        return 0
    for at, item in enumerate(items):
        if item["id"] == after:
            return at + 1
    raise InvalidRequest("`after` must be the id of an item in the list", param="after")
