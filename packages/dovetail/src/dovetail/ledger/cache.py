"""Ledger entries and their token ids in memory, least recently used first."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from dovetail.ledger.entry import EntrySpan, LedgerEntry
from dovetail.ledger.store import MAX_LOOKUP_IDS, SessionStats, make_call_keys

_ENTRY_OVERHEAD_BYTES = 800  # the objects around the bytes, and the places in the indexes
_SPAN_OVERHEAD_BYTES = 250

EntryKey = tuple[str, str]
_Index = dict[tuple[str, str | bytes], dict[str, None]]


def estimate_entry_bytes(entry: LedgerEntry) -> int:
    """Estimate the memory of an entry in bytes."""
    ids = len(entry.suffix) + len(entry.generated) + len(entry.logprobs)
    return _ENTRY_OVERHEAD_BYTES + ids + sum(map(_estimate_span_bytes, entry.spans))


class EntryCache:
    """A bounded set of entries with indexes by call, chain and session.

    An entry that is read or added becomes the most recently used.
    """

    __slots__ = ("_calls", "_chains", "_entries", "_max_bytes", "_sessions", "_total_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._total_bytes = 0
        self._entries: OrderedDict[EntryKey, tuple[LedgerEntry, float]] = OrderedDict()
        self._calls: _Index = {}
        self._chains: _Index = {}
        self._sessions: _Index = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total_bytes(self) -> int:
        """The estimated size of all entries."""
        return self._total_bytes

    def peek(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry without marking it as used."""
        found = self._entries.get((tenant, id))
        return found[0] if found else None

    def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry and mark it as used."""
        found = self._entries.get((tenant, id))
        if found is None:
            return None
        self._entries.move_to_end((tenant, id))
        return found[0]

    def touch(self, tenant: str, id: str, now: float) -> None:
        """Mark the entry as used at `now`, which must not be before any other use."""
        found = self._entries.get((tenant, id))
        if found is not None:
            self._entries[tenant, id] = (found[0], now)
            self._entries.move_to_end((tenant, id))

    def add(self, entry: LedgerEntry, now: float = 0.0) -> None:
        """Add an entry and evict the oldest. An entry larger than the cache is not added."""
        key = (entry.tenant, entry.id)
        cost = estimate_entry_bytes(entry)
        if cost > self._max_bytes:
            return
        if key in self._entries:
            self.touch(*key, now)
            return
        self._entries[key] = (entry, now)
        self._total_bytes += cost
        for index, name in self._index_keys(entry):
            index.setdefault((entry.tenant, name), {})[entry.id] = None
        while self._total_bytes > self._max_bytes:
            self._evict_oldest()

    def evict_older_than(self, time: float) -> None:
        """Drop what was last used before that time."""
        while self._entries and next(iter(self._entries.values()))[1] < time:
            self._evict_oldest()

    def find_by_call(self, tenant: str, key: str) -> tuple[str, ...]:
        """Ids of the entries with that call, newest first."""
        return _newest_ids(self._calls.get((tenant, key)))

    def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries with that chain, newest first."""
        return _newest_ids(self._chains.get((tenant, chain)))

    def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the entries of that session, oldest first."""
        return tuple(self._sessions.get((tenant, session), ()))

    def list_sessions(self, tenant: str) -> list[SessionStats]:
        """The sessions of a tenant. Iterates over those of all tenants."""
        return [
            SessionStats(str(name), len(ids), max(self._entries[tenant, id][1] for id in ids))
            for (owner, name), ids in self._sessions.items()
            if owner == tenant
        ]

    def _index_keys(self, entry: LedgerEntry) -> list[tuple[_Index, str | bytes]]:
        keys: list[tuple[_Index, str | bytes]] = [
            (self._calls, key) for key in make_call_keys(entry)
        ]
        keys.append((self._chains, entry.chain))
        if entry.session:
            keys.append((self._sessions, entry.session))
        return keys

    def _evict_oldest(self) -> None:
        _, (entry, _) = self._entries.popitem(last=False)
        self._total_bytes -= estimate_entry_bytes(entry)
        for index, name in self._index_keys(entry):
            ids = index[entry.tenant, name]
            del ids[entry.id]
            if not ids:
                del index[entry.tenant, name]


def _estimate_span_bytes(span: EntrySpan) -> int:
    return _SPAN_OVERHEAD_BYTES + len(span.raw) + len(span.shown)


def _newest_ids(ids: dict[str, None] | None) -> tuple[str, ...]:
    return tuple(islice(reversed(ids), MAX_LOOKUP_IDS)) if ids else ()


_ARRAY_OVERHEAD_BYTES = 300  # the objects around the ids


class TokenIdCache:
    """A bounded LRU cache of the token ids of entries. The arrays must not be changed.

    Of each branch only the last two are cached: one long session would fill the cache with its own
    past, and older token ids are a prefix of newer ones.
    """

    __slots__ = ("_bytes", "_ids", "_max_bytes", "_parents")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ids: OrderedDict[EntryKey, array[int]] = OrderedDict()
        self._parents: dict[EntryKey, EntryKey] = {}

    def get(self, tenant: str, id: str) -> "array[int] | None":
        """The token ids of an entry."""
        key = (tenant, id)
        found = self._ids.get(key)
        if found is not None:
            self._ids.move_to_end(key)
        return found

    def add(self, entry: LedgerEntry, token_ids: "array[int]") -> None:
        """Add token ids. Those of the parent become the next to evict: sessions rarely go back."""
        key = (entry.tenant, entry.id)
        size = _array_bytes(token_ids)
        if key in self._ids or size > self._max_bytes:
            return
        self._ids[key] = token_ids
        self._bytes += size
        if entry.parent is not None:
            parent = self._parents[key] = (entry.tenant, entry.parent)
            self._evict(self._parents.get(parent))
            if parent in self._ids:
                self._ids.move_to_end(parent, last=False)
        while self._bytes > self._max_bytes:
            self._evict(next(iter(self._ids)))

    def _evict(self, key: EntryKey | None) -> None:
        dropped = self._ids.pop(key, None) if key is not None else None
        if dropped is not None and key is not None:
            self._bytes -= _array_bytes(dropped)
            self._parents.pop(key, None)


def extend_token_ids(base: "array[int]", entries: Iterable[LedgerEntry]) -> "array[int] | None":
    """The token ids of the last entry: each entry extends the one before, the first `base`.

    One array is extended and truncated, so that a token is copied once however many entries there
    are. None where an entry's prefix is longer than what it extends.
    """
    token_ids = base
    for entry in entries:
        if entry.prefix_tokens > len(token_ids):
            return None
        if token_ids is base:
            token_ids = base[: entry.prefix_tokens]  # a copy: the base may be cached
        else:
            del token_ids[entry.prefix_tokens :]
        token_ids.frombytes(entry.suffix)
        token_ids.frombytes(entry.generated)
    return token_ids


def _array_bytes(token_ids: "array[int]") -> int:
    return _ARRAY_OVERHEAD_BYTES + len(token_ids) * token_ids.itemsize
