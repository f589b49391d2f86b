"""Turns on their way to the store."""

from collections.abc import Awaitable, Callable

from dovetail.ledger.entry import Entry
from dovetail.ledger.shelf import weight
from dovetail.storage import backlog


class Backlog(backlog.Backlog[Entry]):
    """Entries that nobody waits for. Until they are in the store, they are found here."""

    __slots__ = ()

    def __init__(self, write: Callable[[Entry], Awaitable[None]]) -> None:
        super().__init__(write, weigh=weight, what="ledger")
