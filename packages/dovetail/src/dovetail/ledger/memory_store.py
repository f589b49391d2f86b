"""A ledger store in this process's memory. Its entries are lost when the process ends."""

import time
from collections.abc import Iterable

from dovetail.ledger.cache import EntryCache
from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.store import (
    MAX_AGE_SECONDS,
    MAX_LISTED_SESSIONS,
    MAX_SESSION_TURNS,
    Clock,
    LedgerStats,
    SessionStats,
)
from dovetail.storage.faults import StoreFaults

DEFAULT_MEMORY_BYTES = 256 << 20


class MemoryLedgerStore:
    """A store for tests, for trials, and for those who want nothing on disk."""

    __slots__ = ("_cache", "_clock", "_max_age", "faults")
    is_degraded = False  # it is always reachable

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MEMORY_BYTES,
        max_age: float = MAX_AGE_SECONDS,
        clock: Clock = time.time,
    ) -> None:
        self._cache = EntryCache(max_bytes)
        self._max_age = max_age
        self._clock = clock
        self.faults = StoreFaults("ledger")

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """The entry, or None if this tenant has none of that id."""
        self._expire()
        return self._cache.peek(tenant, id)

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first."""
        self._expire()
        return self._cache.find_by_call(tenant, call_key)

    async def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first."""
        self._expire()
        return self._cache.find_by_chain(tenant, chain)

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of this session, oldest first."""
        self._expire()
        return self._cache.find_by_session(tenant, session)[:MAX_SESSION_TURNS]

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first."""
        self._expire()
        newest = sorted(
            self._cache.list_sessions(tenant), key=lambda one: one.last_used, reverse=True
        )
        return tuple(newest[:MAX_LISTED_SESSIONS])

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry."""
        self._cache.add(entry, self._expire())

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries as used again."""
        now = self._expire()
        for id in ids:
            self._cache.touch(tenant, id, now)

    async def version(self) -> int | None:
        """No other process can write here."""
        return 0

    async def stats(self) -> LedgerStats:
        """The number and size of the stored entries."""
        self._expire()
        return LedgerStats(len(self._cache), self._cache.total_bytes)

    async def close(self) -> None:
        """Nothing to finish."""

    def _expire(self) -> float:
        """Drop expired entries. Each is dropped once, so the cost is that of its `put`."""
        now = self._clock()
        self._cache.evict_older_than(now - self._max_age)
        return now
