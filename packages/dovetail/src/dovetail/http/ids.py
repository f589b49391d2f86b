"""Outward ids: globally unique, not to be guessed."""

import re
import secrets
from collections.abc import Callable

_ID_BYTES = 12  # 24 characters: letters and digits alone, which every client takes
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})[0-9a-f]{4,8}")


def new_id(prefix: str) -> str:
    """An id in the style of the API that gave the prefix."""
    return prefix + secrets.token_hex(_ID_BYTES)


def new_response_number() -> str:
    """The part of an id behind its prefix, to be given out later."""
    return secrets.token_hex(_ID_BYTES)


class ResponseIds:
    """Where an answer gets its ids. The first it asks for is its own, and has this number.

    So the answer can be found again by its id, whatever API it was given by; and by the id of
    anything in it, which has the same number and one more behind it.
    """

    __slots__ = ("_issued", "_number")

    def __init__(self, number: str) -> None:
        self._number = number
        self._issued = 0

    def __call__(self, prefix: str) -> str:
        if not self._number:
            return new_id(prefix)
        given, self._issued = self._issued, self._issued + 1
        return f"{prefix}{self._number}{given:04x}" if given else prefix + self._number


def parse_response_number(item_id: str) -> str | None:
    """The number of the answer in which an item is, by the item's id. None: it is no id of ours."""
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None else found[1]


def call_id_factory(prefix: str) -> Callable[[], str]:
    """Where the calls of an answer get their ids."""
    return lambda: new_id(prefix)
