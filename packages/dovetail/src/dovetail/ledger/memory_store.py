"""A ledger store in memory. Its entries are lost when the process exits."""

import time
from collections.abc import Iterable

from dovetail.ledger.cache import EntryCache
from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.store import (
    MAX_AGE_SECONDS,
    MAX_LISTED_SESSIONS,
    MAX_LOOKUP_MARKS,
    MAX_MARKS,
    MAX_SESSION_TURNS,
    ChainLookup,
    Clock,
    LedgerStats,
    OpenTurn,
    SessionStats,
    TurnMark,
    closes_turn,
    hides_reasoning,
)
from dovetail.storage.faults import StoreFaults

DEFAULT_MEMORY_BYTES = 256 << 20


class MemoryLedgerStore:
    """A store for tests, trials, and servers without persistent storage.

    `exhaustive=False`: earlier processes may have served turns that this store does not know.
    """

    __slots__ = ("_cache", "_clock", "_exhaustive", "_marks", "_max_age", "faults")
    is_degraded = False  # memory is always available

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MEMORY_BYTES,
        max_age: float = MAX_AGE_SECONDS,
        clock: Clock = time.time,
        exhaustive: bool = True,
    ) -> None:
        self._cache = EntryCache(max_bytes, self._mark_evicted)
        self._exhaustive = exhaustive
        # Tenant and chain -> the ids and sessions of the turns that may have it.
        self._marks: dict[tuple[str, bytes], dict[str, str]] = {}
        self._max_age = max_age
        self._clock = clock
        self.faults = StoreFaults("ledger")

    async def start(self) -> None:
        """Do nothing: memory needs no connection."""

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry, or None if the tenant has no entry with this id."""
        self._expire()
        return self._cache.peek(tenant, id)

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Return the ids of the entries that made this call, newest first."""
        self._expire()
        return self._cache.find_by_call(tenant, call_key)

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        """Return the turns that have, or may have, this chain."""
        now = self._expire()
        marked = (self._marks.get((tenant, key), {}).items() for key in (chain, chain_before))
        marks = tuple(TurnMark(*mark) for found in marked for mark in found)
        return ChainLookup(
            self._cache.find_by_chain(tenant, chain),
            marks[:MAX_LOOKUP_MARKS],
            self._exhaustive and now - self.gap_at >= self._max_age,
        )

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

    async def open_turn(self, turn: OpenTurn) -> None:
        """Announce a turn."""
        self._mark(turn.tenant, turn.chain_before, TurnMark(turn.id, turn.session))

    async def close_turn(self, turn: OpenTurn) -> None:
        """Withdraw an announced turn."""
        self._remove_mark(turn.tenant, turn.chain_before, turn.id)

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry."""
        self._cache.add(entry, self._expire())
        if closes_turn(entry) and self._cache.peek(entry.tenant, entry.id) is not None:
            self._remove_mark(entry.tenant, entry.chain_before, entry.id)

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

    @property
    def gap_at(self) -> float:
        """The time of the last gap; 0 if there is none."""
        return self.faults.gap_at

    async def record_gap(self, turn: OpenTurn, reason: str) -> None:
        """Record that a turn is served although it could not be announced."""
        self.faults.record_gap(self._clock(), reason)

    def _mark(self, tenant: str, key: bytes, mark: TurnMark) -> None:
        self._marks.setdefault((tenant, key), {})[mark.id] = mark.session
        if len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]

    def _remove_mark(self, tenant: str, key: bytes, id: str) -> None:
        found = self._marks.get((tenant, key), {})
        if found.pop(id, None) is not None and not found:
            del self._marks[tenant, key]

    def _mark_evicted(self, entry: LedgerEntry) -> None:
        if hides_reasoning(entry):
            self._mark(entry.tenant, entry.chain, TurnMark(entry.id, entry.session))

    def _expire(self) -> float:
        """Remove expired entries and return the time. The amortized cost is constant per entry."""
        now = self._clock()
        self._cache.evict_older_than(now - self._max_age)
        return now
