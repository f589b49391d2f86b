"""Outward ids: globally unique, not to be guessed."""

import secrets
from collections.abc import Callable

_BYTES = 12  # 24 characters: letters and digits alone, which every client takes


def new_id(prefix: str) -> str:
    """An id in the style of the API that gave the prefix."""
    return prefix + secrets.token_hex(_BYTES)


def call_ids(prefix: str) -> Callable[[], str]:
    """Where the calls of an answer get their ids."""
    return lambda: new_id(prefix)
