"""Entries in this process's memory: gone with it."""

import time
from collections.abc import Iterable

from dovetail.ledger.cache import Shelf
from dovetail.ledger.entry import Entry
from dovetail.ledger.store import (
    MAX_AGE,
    MOST_SESSIONS,
    MOST_TURNS,
    Clock,
    SessionStats,
    StoreStats,
)
from dovetail.storage.faults import StoreFaults

MAX_BYTES = 256 << 20


class MemoryStore:
    """A store for tests, for trials, and for those who want nothing on disk."""

    __slots__ = ("_clock", "_max_age", "_shelf", "faults")
    unsure = False  # it is always there

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_age: float = MAX_AGE, clock: Clock = time.time
    ) -> None:
        self._shelf = Shelf(max_bytes)
        self._max_age = max_age
        self._clock = clock
        self.faults = StoreFaults("ledger")

    async def get(self, tenant: str, id: str) -> Entry | None:
        """The entry, or None if this tenant has none of that id."""
        self._expire()
        return self._shelf.peek(tenant, id)

    async def by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first."""
        self._expire()
        return self._shelf.by_call(tenant, call_key)

    async def by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first."""
        self._expire()
        return self._shelf.by_chain(tenant, chain)

    async def by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of this session, oldest first."""
        self._expire()
        return self._shelf.by_session(tenant, session)[:MOST_TURNS]

    async def sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first."""
        self._expire()
        newest = sorted(self._shelf.sessions(tenant), key=lambda one: one.used, reverse=True)
        return tuple(newest[:MOST_SESSIONS])

    async def put(self, entry: Entry) -> None:
        """Keep it."""
        self._shelf.add(entry, self._expire())

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """These were used again."""
        now = self._expire()
        for id in ids:
            self._shelf.touch(tenant, id, now)

    async def version(self) -> int | None:
        """No other process can write here."""
        return 0

    async def stats(self) -> StoreStats:
        """How much is held."""
        self._expire()
        return StoreStats(len(self._shelf), self._shelf.weight)

    async def close(self) -> None:
        """Nothing to finish."""

    def _expire(self) -> float:
        """Drop what is too old: each entry is dropped once, so the cost is that of its putting."""
        now = self._clock()
        self._shelf.drop_before(now - self._max_age)
        return now
