"""Outward ids: globally unique, not to be guessed."""

import re
import secrets
from collections.abc import Callable

_BYTES = 12  # 24 characters: letters and digits alone, which every client takes
_ITEM = re.compile(r"[a-z]+_([0-9a-f]{24})[0-9a-f]{4,8}")


def new_id(prefix: str) -> str:
    """An id in the style of the API that gave the prefix."""
    return prefix + secrets.token_hex(_BYTES)


def new_number() -> str:
    """The part of an id behind its prefix, to be given out later."""
    return secrets.token_hex(_BYTES)


class AnswerIds:
    """Where an answer gets its ids. The first it asks for is its own, and has this number.

    So the answer can be found again by its id, whatever API it was given by; and by the id of
    anything in it, which has the same number and one more behind it.
    """

    __slots__ = ("_given", "_number")

    def __init__(self, number: str) -> None:
        self._number = number
        self._given = 0

    def __call__(self, prefix: str) -> str:
        if not self._number:
            return new_id(prefix)
        given, self._given = self._given, self._given + 1
        return f"{prefix}{self._number}{given:04x}" if given else prefix + self._number


def number_in(item: str) -> str | None:
    """The number of the answer in which an item is, by the item's id. None: it is no id of ours."""
    found = _ITEM.fullmatch(item)
    return None if found is None else found[1]


def call_ids(prefix: str) -> Callable[[], str]:
    """Where the calls of an answer get their ids."""
    return lambda: new_id(prefix)
