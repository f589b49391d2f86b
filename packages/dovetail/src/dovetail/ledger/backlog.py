"""Writes that nobody waits for: done in the background, in their order, and never lost silently."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice

from dovetail.ledger.entry import Entry
from dovetail.ledger.shelf import Key, weight

_AT_ONCE = 64
_log = logging.getLogger(__name__)


class Backlog:
    """Entries on their way to the store. Until they are there, they are found here.

    `write` gets each entry; what it raises is logged and counted in `lost`.
    """

    __slots__ = ("_entries", "_task", "_weight", "_write", "lost")

    def __init__(self, write: Callable[[Entry], Awaitable[None]]) -> None:
        self._write = write
        self._entries: dict[Key, Entry] = {}
        self._weight = 0
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    @property
    def weight(self) -> int:
        """About how many bytes wait."""
        return self._weight

    def get(self, tenant: str, id: str) -> Entry | None:
        """An entry that is not written yet."""
        return self._entries.get((tenant, id))

    def add(self, entry: Entry) -> None:
        """Have it written soon."""
        key = (entry.tenant, entry.id)
        if key in self._entries:
            return
        self._entries[key] = entry
        self._weight += weight(entry)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())

    async def flush(self) -> None:
        """Wait until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        """Many at once, so that a store can make one transaction of them."""
        while self._entries:
            batch = list(islice(self._entries.values(), _AT_ONCE))
            results = await asyncio.gather(*map(self._write, batch), return_exceptions=True)
            for entry, result in zip(batch, results, strict=True):
                del self._entries[entry.tenant, entry.id]
                self._weight -= weight(entry)
                if isinstance(result, BaseException):
                    self._lose(result)

    def _lose(self, error: BaseException) -> None:
        self.lost += 1
        if self.lost.bit_count() == 1:  # the first, and then ever more seldom
            _log.error("ledger.write_failed lost=%d error=%s", self.lost, error)
