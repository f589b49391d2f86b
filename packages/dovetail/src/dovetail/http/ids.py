"""Public ids, which are globally unique and hard to guess."""

import re
from collections.abc import Callable

from dovetail.storage.random_ids import new_id_number

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})[0-9a-f]{4,8}")


def new_id(prefix: str) -> str:
    """Create an id with the prefix of an API, of 24 hexadecimal digits, which clients accept."""
    return prefix + new_id_number().hex()


def new_response_number() -> str:
    """Create the part of a response's id that follows its prefix."""
    return new_id_number().hex()


class ResponseIds:
    """Issue the ids of a response: first the id of the response itself, then those of its items.

    All ids contain the same number, and items have their position appended. So the response can be
    found by its id, whichever API returned it, and by the id of any of its items.
    """

    __slots__ = ("_issued", "_number")

    def __init__(self, number: str) -> None:
        self._number = number
        self._issued = 0

    def __call__(self, prefix: str) -> str:
        if not self._number:
            return new_id(prefix)
        position, self._issued = self._issued, self._issued + 1
        return f"{prefix}{self._number}{position:04x}" if position else prefix + self._number


def parse_response_number(item_id: str) -> str | None:
    """Return the number of the response that an item belongs to; None for an unknown format."""
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else match[1]


def call_id_factory(prefix: str) -> Callable[[], str]:
    """Return a function that issues ids of tool calls."""
    return lambda: new_id(prefix)
