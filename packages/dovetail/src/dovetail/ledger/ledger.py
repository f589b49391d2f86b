"""The ledger of turns for the hot path: an in-memory cache in front of a store.

Entries are immutable, so cached copies are always valid. If the store fails, turns are not
recognized, but no request fails because of it.
"""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Iterable
from typing import NamedTuple, TypeVar

from dovetail.ledger.cache import (
    EntryCache,
    SharedTokenIds,
    TokenIdCache,
    estimate_entry_bytes,
    extend_token_ids,
)
from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry, normalize_session_name
from dovetail.ledger.store import (
    MAX_LOOKUP_IDS,
    ChainLookup,
    Clock,
    LedgerStats,
    LedgerStore,
    OpenTurn,
    SessionStats,
    TurnMark,
    make_call_key,
)
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.lru import LruCache
from dovetail.storage.write_queue import WriteQueue

STORE_WRITE_TIMEOUT_SECONDS = 3.0  # how long the end of a turn waits for the store
REWRITE_TIMEOUT_SECONDS = 0.5  # the same, while nothing was stored since a turn was late
OPEN_TIMEOUT_SECONDS = 2.0  # how long a turn waits until it is announced to the store
REOPEN_TIMEOUT_SECONDS = 0.1  # the same, after an announcement has failed
RENEW_INTERVAL_SECONDS = 3600.0  # well below the age at which stores expire entries

_MAX_CALL_KEY_CHARS = 1024  # of ids that are looked up; this server makes shorter ones
_MAX_TRACKED_CHAINS = 16384  # entries of each lookup cache below
_T = TypeVar("_T")

StoreVersion = tuple[int, float]  # the version of the store and the time of its last gap


class ChainCandidates(NamedTuple):
    """Turns that have, or may have, a chain.

    `entries`: the known ones, newest first, at most `MAX_LOOKUP_IDS`.
    `marks`: others, which cannot be compared: open, lost or evicted turns.
    `exhaustive`: whether no other turn with this chain can exist.
    `responded`: whether the store responded; without it the turns of other processes are unknown.
    """

    entries: list[LedgerEntry]
    marks: list[TurnMark]
    exhaustive: bool
    responded: bool


class Ledger:
    """Records turns and looks them up.

    A lookup by chain always queries the store, which also has the turns of other and of earlier
    processes: the caller needs all of them to detect an ambiguity.

    `shared`: other processes write to the same store.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_clock",
        "_entry_cache",
        "_last_sequence",
        "_open_timeout_seconds",
        "_renewals",
        "_renewed_at",
        "_shared",
        "_store",
        "_token_cache",
        "_was_late",
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
        self.write_timeout_seconds = STORE_WRITE_TIMEOUT_SECONDS
        self._was_late = False  # whether nothing was stored since a turn was not stored in time
        self._open_timeout_seconds = OPEN_TIMEOUT_SECONDS
        self._clock = clock
        self._renewals: set[asyncio.Task[None]] = set()
        # Entry -> the time at which all its ancestors were last touched.
        self._renewed_at: LruCache[tuple[str, str], float] = LruCache(_MAX_TRACKED_CHAINS)
        # Chain -> the sequence number of the last turn of this process that has, or may have, it.
        self._last_sequence: LruCache[tuple[str, bytes], int] = LruCache(_MAX_TRACKED_CHAINS)
        self.sequence = 0  # number of turns opened and recorded by this process

    @property
    def faults(self) -> StoreFaults:
        """The failures of the store."""
        return self._store.faults

    @property
    def is_degraded(self) -> bool:
        """Whether lookups may miss existing turns because a shared store was unreachable."""
        return self._store.is_degraded

    async def start(self) -> None:
        """Connect the store before the first request."""
        await self._store.start()

    def get_cached(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry if it is in memory, else None."""
        return self._entry_cache.get(tenant, id) or self._backlog.get(tenant, id)

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry, or None if the tenant has no entry with this id."""
        entry = self.get_cached(tenant, id)
        if entry is None:
            entry = await self._or_none(self._store.get(tenant, id))
            if entry is not None:
                self._entry_cache.add(entry)
        return entry

    async def find_by_call(self, tenant: str, call_id: str) -> list[LedgerEntry]:
        """Return the entries that made this call: at most one, since the server makes call ids."""
        key = make_call_key(call_id)
        if not key or len(key) > _MAX_CALL_KEY_CHARS:
            return []
        ids = self._entry_cache.find_by_call(tenant, key)
        return await self._load_all(
            tenant, ids or await self._or_none(self._store.find_by_call(tenant, key))
        )

    async def find_by_chain(
        self, tenant: str, chain: bytes, chain_before: bytes
    ) -> ChainCandidates:
        """Return the turns that have, or may have, this chain.

        An id without an entry is a mark: the entry was evicted, or the store does not respond.
        """
        found = await self._or_none(self._store.find_by_chain(tenant, chain, chain_before))
        stored, marks, exhaustive = found or ChainLookup((), (), exhaustive=False)
        cached = self._entry_cache.find_by_chain(tenant, chain)  # those not yet stored first
        ids = (*(id for id in cached if id not in stored), *stored)[:MAX_LOOKUP_IDS]
        entries = await self._load_all(tenant, ids)
        known = {entry.id for entry in entries}
        return ChainCandidates(
            entries,
            [mark for mark in marks if mark.id not in known]
            + [TurnMark(id, "") for id in ids if id not in known],
            exhaustive,
            responded=found is not None,
        )

    async def open_turn(self, turn: OpenTurn) -> None:
        """Announce a turn to the store before its first event is emitted.

        A turn that cannot be announced is served nevertheless, but recorded as a gap: lookups are
        not exhaustive until the gap is older than any entry. Only the first failure waits long.
        """
        self.sequence += 1
        self._last_sequence.put((turn.tenant, turn.chain_before), self.sequence)
        try:
            async with asyncio.timeout(self._open_timeout_seconds):
                await self._store.open_turn(turn)
        except (StoreError, TimeoutError) as error:
            self._open_timeout_seconds = REOPEN_TIMEOUT_SECONDS
            await self._store.record_gap(turn, str(error) or type(error).__name__)
        else:
            self._open_timeout_seconds = OPEN_TIMEOUT_SECONDS

    async def close_turn(self, turn: OpenTurn) -> None:
        """Withdraw an announced turn of which the client has received nothing."""
        await self._or_none(self._store.close_turn(turn))

    async def store_version(self) -> StoreVersion | None:
        """Return the version of the store, or None if it is unknown.

        It changes at a gap, and if another process writes to the store.
        """
        version = await self._or_none(self._store.version()) if self._shared else 0
        return None if version is None else (version, self._store.gap_at)

    def has_recorded_since(self, tenant: str, chains: Iterable[bytes], sequence: int) -> bool:
        """Return whether this process opened or recorded a turn with one of these chains.

        Only turns after `sequence` count. An open turn counts by the chain before it.
        """
        latest = self._last_sequence
        return any((latest.peek((tenant, chain)) or 0) > sequence for chain in chains)

    async def record(self, entry: LedgerEntry, prompt: "array[int]") -> None:
        """Record a turn; `prompt` holds all token ids of its prompt.

        Returns when the turn is in the store and survives a crash of the process, or after the
        write timeout; the turn is then still open in the store, and counted as late. Of the turns
        of a store that does not respond, only the first one waits long. If too many writes are
        pending, waits for all of them, so that memory stays bounded.
        """
        token_ids = prompt[:]
        token_ids.frombytes(entry.generated)
        self._token_cache.add(entry, SharedTokenIds(token_ids))
        self._entry_cache.add(entry)
        self.sequence += 1
        self._last_sequence.put((entry.tenant, entry.chain), self.sequence)
        self._backlog.put(entry)
        if self._backlog.pending_bytes > self._backlog_bytes:
            await self.flush()
            return
        timeout = self.write_timeout_seconds
        try:
            async with asyncio.timeout(
                min(timeout, REWRITE_TIMEOUT_SECONDS) if self._was_late else timeout
            ):
                await self._backlog.wait_written(entry.tenant, entry.id)
        except TimeoutError:
            self._was_late = True
            self.faults.record_late()

    async def load_token_ids(self, entry: LedgerEntry) -> SharedTokenIds | None:
        """Return the token ids of an entry: prompt and generated tokens, without the stop token.

        Returns None if an ancestor is missing.
        """
        ancestors: dict[str, LedgerEntry] = {}
        ancestor: LedgerEntry | None = entry
        base = self._token_cache.get(entry.tenant, entry.id)
        while base is None and ancestor is not None:
            ancestors[ancestor.id] = ancestor
            if ancestor.parent is None:
                base = SharedTokenIds(array(TOKEN_ID_TYPECODE))
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
        """Return an entry and its ancestors, root first.

        If an ancestor is missing, the first entry of the list still names it as its parent.
        """
        ancestors: dict[str, LedgerEntry] = {}
        ancestor = await self.get(tenant, id)
        while ancestor is not None:
            ancestors[ancestor.id] = ancestor
            ancestor = await self._load_parent(ancestor, ancestors)
        return list(reversed(ancestors.values()))

    def release_session(self, tenant: str, session: str) -> None:
        """Discard the cached token ids of a session that has ended. Its turns stay stored."""
        for id in self._entry_cache.find_by_session(tenant, normalize_session_name(session)):
            self._token_cache.discard(tenant, id)

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the turn ids of a session, oldest first. Raises StoreError if the store fails."""
        await self.flush()
        return await self._store.find_by_session(tenant, normalize_session_name(session))

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """Return the sessions of a tenant, newest first. Raises StoreError if the store fails."""
        await self.flush()
        return await self._store.list_sessions(tenant)

    async def flush(self) -> None:
        """Wait until every recorded turn is in the store."""
        await self._backlog.flush()
        await asyncio.gather(*self._renewals)

    async def stats(self) -> LedgerStats:
        """Return the number and size of the stored entries."""
        return await self._store.stats()

    async def close(self) -> None:
        """Flush pending writes and close the store."""
        await self.flush()
        await self._store.close()

    async def _load_parent(
        self, entry: LedgerEntry, descendants: dict[str, LedgerEntry]
    ) -> LedgerEntry | None:
        """Return the parent of an entry, or None for a cycle, which only a damaged store has."""
        if entry.parent is None or entry.parent in descendants:
            return None
        return await self.get(entry.tenant, entry.parent)

    async def _load_all(self, tenant: str, ids: tuple[str, ...] | None) -> list[LedgerEntry]:
        found = [await self.get(tenant, id) for id in ids or ()]
        return [entry for entry in found if entry is not None]

    async def _write(self, entry: LedgerEntry) -> None:
        await self._store.put(entry)
        self._was_late = False  # the store responds, although it may be slow
        self._renew_ancestors(entry)

    def _renew_ancestors(self, entry: LedgerEntry) -> None:
        """Mark all turns of a running session as used, at most once per interval.

        No response waits for it: it reads the ancestors, possibly one after the other.
        """
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
        task = asyncio.create_task(self._touch_ancestors(entry.tenant, entry.parent))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def _touch_ancestors(self, tenant: str, id: str) -> None:
        ancestors = await self.load_ancestors(tenant, id)
        await self._or_none(self._store.touch(tenant, [above.id for above in ancestors]))

    async def _or_none(self, operation: Awaitable[_T]) -> _T | None:
        try:
            return await operation
        except StoreError:  # the store has logged the failure
            return None
