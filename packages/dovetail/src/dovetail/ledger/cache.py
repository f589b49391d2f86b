"""LRU caches of ledger entries and of their token ids."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from dovetail.ledger.entry import EntrySpan, LedgerEntry
from dovetail.ledger.store import MAX_LOOKUP_IDS, SessionStats, make_call_keys
from dovetail.storage.lru import LruCache

_ENTRY_OVERHEAD_BYTES = 800  # Python objects and index entries
_SPAN_OVERHEAD_BYTES = 250

EntryKey = tuple[str, str]
_Index = dict[tuple[str, str | bytes], dict[str, None]]


def estimate_entry_bytes(entry: LedgerEntry) -> int:
    """Estimate the memory of an entry in bytes."""
    ids = len(entry.suffix) + len(entry.generated) + len(entry.logprobs) + len(entry.state)
    return _ENTRY_OVERHEAD_BYTES + ids + sum(map(_estimate_span_bytes, entry.spans))


@dataclass(slots=True)
class _CachedEntry:
    entry: LedgerEntry
    used_at: float

    @property
    def size(self) -> int:
        return estimate_entry_bytes(self.entry)


class EntryCache:
    """A size-bounded LRU cache of entries with indexes by call, chain and session.

    An entry that is read or added becomes the most recently used.
    """

    __slots__ = ("_calls", "_chains", "_entries", "_max_bytes", "_on_evict", "_sessions")

    def __init__(
        self, max_bytes: int, on_evict: Callable[[LedgerEntry], None] = lambda entry: None
    ) -> None:
        self._max_bytes = max_bytes
        self._on_evict = on_evict
        self._entries: LruCache[EntryKey, _CachedEntry] = LruCache(
            max_size=max_bytes, size_of=attrgetter("size"), on_evict=self._remove_from_indexes
        )
        self._calls: _Index = {}
        self._chains: _Index = {}
        self._sessions: _Index = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total_bytes(self) -> int:
        """The estimated size of all entries."""
        return self._entries.total_size

    def peek(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry without marking it as used."""
        found = self._entries.peek((tenant, id))
        return found.entry if found is not None else None

    def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry and mark it as used."""
        found = self._entries.get((tenant, id))
        return found.entry if found is not None else None

    def touch(self, tenant: str, id: str, now: float) -> None:
        """Mark the entry as used at `now`, which must not decrease between calls."""
        found = self._entries.get((tenant, id))
        if found is not None:
            found.used_at = now

    def add(self, entry: LedgerEntry, now: float = 0.0) -> None:
        """Add an entry and enforce the size limit. An entry larger than the cache is not added."""
        key = (entry.tenant, entry.id)
        if estimate_entry_bytes(entry) > self._max_bytes:
            return
        if key in self._entries:
            self.touch(*key, now)
            return
        for index, name in self._index_keys(entry):
            index.setdefault((entry.tenant, name), {})[entry.id] = None
        self._entries.put(key, _CachedEntry(entry, now))

    def evict_older_than(self, time: float) -> None:
        """Remove the entries that were last used before `time`."""
        while (oldest := self._entries.oldest()) is not None and oldest[1].used_at < time:
            self._remove_from_indexes(*self._entries.pop_oldest())

    def find_by_call(self, tenant: str, key: str) -> tuple[str, ...]:
        """Return the ids of the entries with this call, newest first."""
        return _newest_ids(self._calls.get((tenant, key)))

    def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Return the ids of the entries with this chain, newest first."""
        return _newest_ids(self._chains.get((tenant, chain)))

    def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the ids of the entries of this session, oldest first."""
        return tuple(self._sessions.get((tenant, session), ()))

    def list_sessions(self, tenant: str) -> list[SessionStats]:
        """Return the sessions of a tenant. Iterates over the sessions of all tenants."""
        return [
            SessionStats(str(name), len(ids), self._last_use(tenant, ids))
            for (owner, name), ids in self._sessions.items()
            if owner == tenant
        ]

    def _last_use(self, tenant: str, ids: Iterable[str]) -> float:
        found = (self._entries.peek((tenant, id)) for id in ids)
        return max(one.used_at for one in found if one is not None)

    def _index_keys(self, entry: LedgerEntry) -> list[tuple[_Index, str | bytes]]:
        keys: list[tuple[_Index, str | bytes]] = [
            (self._calls, key) for key in make_call_keys(entry)
        ]
        keys.append((self._chains, entry.chain))
        if entry.session:
            keys.append((self._sessions, entry.session))
        return keys

    def _remove_from_indexes(self, key: EntryKey, cached: _CachedEntry) -> None:
        tenant, id = key
        for index, name in self._index_keys(cached.entry):
            ids = index[tenant, name]
            del ids[id]
            if not ids:
                del index[tenant, name]
        self._on_evict(cached.entry)


def _estimate_span_bytes(span: EntrySpan) -> int:
    return _SPAN_OVERHEAD_BYTES + len(span.raw) + len(span.shown)


def _newest_ids(ids: dict[str, None] | None) -> tuple[str, ...]:
    return tuple(islice(reversed(ids), MAX_LOOKUP_IDS)) if ids else ()


_ARRAY_OVERHEAD_BYTES = 300  # Python objects


class SharedTokenIds:
    """Token ids that prompts start with. One prompt may extend them in place, without a copy.

    A copy of a long prompt takes longer than the rest of its preparation, because the system has to
    provide the memory. Other prompts get a copy: the first ids of the array never change.
    """

    __slots__ = ("_array", "_free", "_length")

    def __init__(self, token_ids: "array[int]") -> None:
        self._array = token_ids
        self._free = [token_ids]  # empty when the array was taken
        self._length = len(token_ids)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> "array[int]":
        """Return a copy of a part."""
        return self._array[slice(*part.indices(self._length))]

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    @property
    def size(self) -> int:
        """Estimated bytes."""
        return _ARRAY_OVERHEAD_BYTES + self._length * self._array.itemsize

    def take(self) -> "array[int]":
        """Return an array with the ids that the caller may extend, but not shorten.

        The first caller gets the shared array, also if several threads call at the same time.
        """
        try:
            return self._free.pop()
        except IndexError:
            return self[:]


class TokenIdCache:
    """A size-bounded LRU cache of the token ids of entries.

    Only the last two entries of each branch are cached: one long session would otherwise fill the
    cache with its earlier turns, whose token ids are prefixes of the later ones.
    """

    __slots__ = ("_ids", "_max_bytes", "_parents")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parents: dict[EntryKey, EntryKey] = {}
        self._ids: LruCache[EntryKey, SharedTokenIds] = LruCache(
            max_size=max_bytes,
            size_of=attrgetter("size"),
            on_evict=lambda key, ids: self._parents.pop(key, None),
        )

    def get(self, tenant: str, id: str) -> SharedTokenIds | None:
        """Return the token ids of an entry, or None if they are not cached."""
        return self._ids.get((tenant, id))

    def add(self, entry: LedgerEntry, token_ids: SharedTokenIds) -> None:
        """Add token ids, and evict those of the parent next: sessions rarely branch from it."""
        key = (entry.tenant, entry.id)
        if key in self._ids or token_ids.size > self._max_bytes:
            return
        if entry.parent is not None:
            parent = self._parents[key] = (entry.tenant, entry.parent)
            self._remove(self._parents.get(parent))
            self._ids.demote(parent)
        self._ids.put(key, token_ids)

    def discard(self, tenant: str, id: str) -> None:
        """Remove the token ids of an entry. Does nothing if they are not cached."""
        self._remove((tenant, id))

    def _remove(self, key: EntryKey | None) -> None:
        if key is not None and self._ids.pop(key) is not None:
            self._parents.pop(key, None)


def extend_token_ids(base: SharedTokenIds, entries: Iterable[LedgerEntry]) -> SharedTokenIds | None:
    """Return the token ids of the last entry: each entry extends the previous one, or `base`.

    One array is extended and truncated in place, so that a token is copied once for any number of
    entries. Returns None if the prefix of an entry is longer than the token ids that it extends.
    """
    token_ids: array[int] | None = None
    for entry in entries:
        if entry.prefix_tokens > len(base if token_ids is None else token_ids):
            return None
        if token_ids is None:
            token_ids = base[: entry.prefix_tokens]
        else:
            del token_ids[entry.prefix_tokens :]
        token_ids.frombytes(entry.suffix)
        token_ids.frombytes(entry.generated)
    return base if token_ids is None else SharedTokenIds(token_ids)
