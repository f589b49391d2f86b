"""A ledger store in memory. Its entries are lost when the process exits."""

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
    """A store for tests, trials, and servers without persistent storage."""

    __slots__ = ("_cache", "_clock", "_max_age", "faults")
    is_degraded = False  # memory is always available

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
        """Return the entry, or None if the tenant has no entry with this id."""
        self._expire()
        return self._cache.peek(tenant, id)

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Return the ids of the entries that made this call, newest first."""
        self._expire()
        return self._cache.find_by_call(tenant, call_key)

    async def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Return the ids of the entries with this chain, newest first."""
        self._expire()
        return self._cache.find_by_chain(tenant, chain)

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the ids of the entries of this session, oldest first."""
        self._expire()
        return self._cache.find_by_session(tenant, session)[:MAX_SESSION_TURNS]

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """Return the sessions of a tenant, newest first."""
        self._expire()
        newest = sorted(
            self._cache.list_sessions(tenant), key=lambda one: one.last_used, reverse=True
        )
        return tuple(newest[:MAX_LISTED_SESSIONS])

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry."""
        self._cache.add(entry, self._expire())

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries as used."""
        now = self._expire()
        for id in ids:
            self._cache.touch(tenant, id, now)

    async def version(self) -> int | None:
        """Return 0: no other process can write to this store."""
        return 0

    async def stats(self) -> LedgerStats:
        """Return the number and size of the stored entries."""
        self._expire()
        return LedgerStats(len(self._cache), self._cache.total_bytes)

    async def close(self) -> None:
        """Do nothing: memory needs no cleanup."""

    def _expire(self) -> float:
        """Remove expired entries and return the time. The amortized cost is constant per entry."""
        now = self._clock()
        self._cache.evict_older_than(now - self._max_age)
        return now
