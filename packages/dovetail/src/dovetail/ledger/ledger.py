"""The ledger of turns as the hot path uses it: memory first, then the store.

Entries never change, so a copy in memory is as good as the stored one. A store that fails makes
turns unknown; it never fails a request.
"""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import TypeVar

from dovetail.ledger.cache import EntryCache, TokenIdCache, estimate_entry_bytes, extend_token_ids
from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry, normalize_session_name
from dovetail.ledger.store import (
    MAX_LOOKUP_IDS,
    Clock,
    LedgerStats,
    LedgerStore,
    SessionStats,
    make_call_key,
)
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.lru import LruCache
from dovetail.storage.write_queue import WriteQueue

STORE_WRITE_TIMEOUT_SECONDS = 0.5  # how long a turn's end waits for a store that others read
RENEW_INTERVAL_SECONDS = 3600.0  # well below the age at which stores expire entries

_MAX_TRACKED_CHAINS = 16384  # chains and sessions with something known about them
_T = TypeVar("_T")


class Ledger:
    """Records turns and finds them again.

    `shared`: other processes write to the same store. Then a look-up by chain always queries it:
    one of them may have recorded another turn that looks the same, and the caller has to know of
    both. `has_worker_peers`: another process may receive the next turn of a session. Then a turn
    counts as recorded when it is in the store, unless that exceeds the write timeout.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_clock",
        "_entries_by_chain",
        "_entry_cache",
        "_last_sequence",
        "_renewed_at",
        "_shared",
        "_store",
        "_token_cache",
        "has_worker_peers",
        "sequence",
        "write_timeout_seconds",
    )

    def __init__(
        self,
        store: LedgerStore,
        *,
        cache_bytes: int = 64 << 20,
        token_cache_bytes: int = 128 << 20,
        shared: bool = False,
        has_worker_peers: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self._entry_cache = EntryCache(cache_bytes)
        self._token_cache = TokenIdCache(token_cache_bytes)
        self._backlog: WriteQueue[LedgerEntry] = WriteQueue(
            self._write, size_of=estimate_entry_bytes, faults=store.faults
        )
        self._backlog_bytes = cache_bytes
        self._shared = shared
        self.has_worker_peers = has_worker_peers
        self.write_timeout_seconds = STORE_WRITE_TIMEOUT_SECONDS
        self._clock = clock
        # The ids of all entries with a chain, where the store was queried.
        self._entries_by_chain: LruCache[tuple[str, bytes], tuple[str, ...]] = LruCache(
            _MAX_TRACKED_CHAINS
        )
        # When all ancestors of an entry were last touched.
        self._renewed_at: LruCache[tuple[str, str], float] = LruCache(_MAX_TRACKED_CHAINS)
        # The sequence number of the last turn recorded here with a chain.
        self._last_sequence: LruCache[tuple[str, bytes], int] = LruCache(_MAX_TRACKED_CHAINS)
        self.sequence = 0  # turns recorded here

    @property
    def faults(self) -> StoreFaults:
        """The failures of the store."""
        return self._store.faults

    @property
    def is_degraded(self) -> bool:
        """Whether a turn may be unknown only because a shared store was unreachable."""
        return self._store.is_degraded

    def get_cached(self, tenant: str, id: str) -> LedgerEntry | None:
        """The entry, if it is in memory."""
        return self._entry_cache.get(tenant, id) or self._backlog.get(tenant, id)

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """The entry, or None if this tenant has none of that id."""
        entry = self.get_cached(tenant, id)
        if entry is None:
            entry = await self._or_none(self._store.get(tenant, id))
            if entry is not None:
                self._entry_cache.add(entry)
        return entry

    async def find_by_call(self, tenant: str, call_id: str) -> list[LedgerEntry]:
        """The entries that made this call: at most one, since call ids are ours and unique."""
        key = make_call_key(call_id)
        if not key:
            return []
        ids = self._entry_cache.find_by_call(tenant, key)
        return await self._load_all(
            tenant, ids or await self._or_none(self._store.find_by_call(tenant, key))
        )

    async def find_by_chain(self, tenant: str, chain: bytes) -> list[LedgerEntry]:
        """All entries with that chain, newest first, at most `MAX_LOOKUP_IDS`."""
        ids = None if self._shared else self._entries_by_chain.peek((tenant, chain))
        if ids is None:
            ids = await self._find_same_chain(tenant, chain)
        return await self._load_all(tenant, ids)

    async def store_version(self) -> int | None:
        """The store's version: unchanged while no other process writes to it."""
        return await self._or_none(self._store.version()) if self._shared else 0

    def has_recorded_since(self, tenant: str, chains: Iterable[bytes], sequence: int) -> bool:
        """Whether a turn with one of these chains was recorded here after `sequence`."""
        latest = self._last_sequence
        return any((latest.peek((tenant, chain)) or 0) > sequence for chain in chains)

    async def record(self, entry: LedgerEntry, prompt: "array[int]") -> None:
        """Record a turn; `prompt` is all of its prompt's ids. Does not wait for the disk.

        It waits only where the store cannot keep up, so that memory stays bounded, and for a
        limited time where there are worker peers.
        """
        token_ids = prompt[:]
        token_ids.frombytes(entry.generated)
        self._token_cache.add(entry, token_ids)
        self._entry_cache.add(entry)
        self.sequence += 1
        self._last_sequence.put((entry.tenant, entry.chain), self.sequence)
        same_chain = self._entries_by_chain.peek((entry.tenant, entry.chain))
        if same_chain is not None and entry.id not in same_chain:
            self._entries_by_chain.put(
                (entry.tenant, entry.chain), (entry.id, *same_chain)[:MAX_LOOKUP_IDS]
            )
        self._backlog.put(entry)
        if self._backlog.pending_bytes > self._backlog_bytes:
            await self.flush()
        elif self.has_worker_peers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.write_timeout_seconds):
                    await self._backlog.wait_written(entry.tenant, entry.id)

    async def load_token_ids(self, entry: LedgerEntry) -> "array[int] | None":
        """The token ids of an entry: its prompt and what was generated, without the stop token.

        None if an ancestor is gone. The array is shared: it must not be changed.
        """
        ancestors: dict[str, LedgerEntry] = {}
        ancestor: LedgerEntry | None = entry
        base = self._token_cache.get(entry.tenant, entry.id)
        while base is None and ancestor is not None:
            ancestors[ancestor.id] = ancestor
            if ancestor.parent is None:
                base = array(TOKEN_ID_TYPECODE)
                break
            base = self._token_cache.get(ancestor.tenant, ancestor.parent)
            ancestor = await self._load_parent(ancestor, ancestors) if base is None else None
        if base is None:
            return None
        token_ids = extend_token_ids(base, reversed(ancestors.values()))
        if token_ids is not None:
            self._token_cache.add(entry, token_ids)
        return token_ids

    async def load_ancestors(self, tenant: str, id: str) -> list[LedgerEntry]:
        """An entry and its ancestors, root first.

        Where an ancestor is gone, the first of the list still names it as its parent.
        """
        ancestors: dict[str, LedgerEntry] = {}
        ancestor = await self.get(tenant, id)
        while ancestor is not None:
            ancestors[ancestor.id] = ancestor
            ancestor = await self._load_parent(ancestor, ancestors)
        return list(reversed(ancestors.values()))

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the turns of a session, oldest first. StoreError if the store fails."""
        await self.flush()
        return await self._store.find_by_session(tenant, normalize_session_name(session))

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first. StoreError if the store fails."""
        await self.flush()
        return await self._store.list_sessions(tenant)

    async def flush(self) -> None:
        """Wait until every recorded turn is in the store."""
        await self._backlog.flush()

    async def stats(self) -> LedgerStats:
        """The number and size of the stored entries."""
        return await self._store.stats()

    async def close(self) -> None:
        """Flush, and close the store."""
        await self.flush()
        await self._store.close()

    async def _load_parent(
        self, entry: LedgerEntry, descendants: dict[str, LedgerEntry]
    ) -> LedgerEntry | None:
        """The parent of an entry. A cycle, which only a damaged store has, ends the walk."""
        if entry.parent is None or entry.parent in descendants:
            return None
        return await self.get(entry.tenant, entry.parent)

    async def _load_all(self, tenant: str, ids: tuple[str, ...] | None) -> list[LedgerEntry]:
        found = [await self.get(tenant, id) for id in ids or ()]
        return [entry for entry in found if entry is not None]

    async def _find_same_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """The ids of all entries with that chain: those not yet stored come first."""
        stored = await self._or_none(self._store.find_by_chain(tenant, chain))
        cached = self._entry_cache.find_by_chain(tenant, chain)
        if stored is None:
            return cached
        same_chain = (*(id for id in cached if id not in stored), *stored)[:MAX_LOOKUP_IDS]
        self._entries_by_chain.put((tenant, chain), same_chain)
        return same_chain

    async def _write(self, entry: LedgerEntry) -> None:
        """Store an entry, and look up now what the next request would have to wait for."""
        await self._store.put(entry)
        if not self._shared and self._entries_by_chain.peek((entry.tenant, entry.chain)) is None:
            await self._find_same_chain(entry.tenant, entry.chain)
        await self._renew_ancestors(entry)

    async def _renew_ancestors(self, entry: LedgerEntry) -> None:
        """Touch all turns of a running session, at most once per interval."""
        now = self._clock()
        key = (entry.tenant, entry.id)
        if entry.parent is None:
            self._renewed_at.put(key, now)
            return
        renewed = self._renewed_at.peek((entry.tenant, entry.parent))
        if renewed is not None and now - renewed < RENEW_INTERVAL_SECONDS:
            self._renewed_at.put(key, renewed)
            return
        self._renewed_at.put(key, now)
        ancestors = await self.load_ancestors(entry.tenant, entry.parent)
        await self._store.touch(entry.tenant, [above.id for above in ancestors])

    async def _or_none(self, operation: Awaitable[_T]) -> _T | None:
        try:
            return await operation
        except StoreError:  # the store has reported it
            return None
