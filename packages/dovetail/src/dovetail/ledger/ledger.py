"""The ledger: what the hot path asks for turns. Memory first, then the store.

Entries never change, so a copy in memory is as good as the stored one. A store that fails makes
turns unknown; it never fails a request.
"""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import TypeVar

from dovetail.ledger.cache import Shelf, weight
from dovetail.ledger.entry import IDS, Entry, session_name
from dovetail.ledger.store import (
    NEWEST,
    Clock,
    SessionStats,
    Store,
    StoreError,
    StoreStats,
    call_key,
)
from dovetail.ledger.wholes import Wholes, extend
from dovetail.storage.bounded_map import BoundedMap
from dovetail.storage.faults import StoreFaults
from dovetail.storage.write_queue import WriteQueue

ARRIVAL = 0.5  # seconds that a turn's end waits for its place in a store that others read
RENEW_EVERY = 3600.0  # seconds; well below the age at which stores forget

_REMEMBERED = 16384  # chains and sessions with something known about them
_T = TypeVar("_T")


class Ledger:
    """Turns remembered.

    `shared` says that other processes write to the same store. Then a look-up by chain always asks
    it: one of them may have recorded another turn that looks the same, and the caller has to know
    of both. `siblings` says that some of them may be asked for the next turn of a session: then a
    turn counts as recorded when it is in the store, as far as that does not let itself be waited
    for.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_clock",
        "_kin",
        "_latest",
        "_renewed",
        "_shared",
        "_shelf",
        "_store",
        "_wholes",
        "sequence",
        "siblings",
    )

    def __init__(
        self,
        store: Store,
        *,
        cache_bytes: int = 64 << 20,
        wholes_bytes: int = 128 << 20,
        shared: bool = False,
        siblings: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self._shelf = Shelf(cache_bytes)
        self._wholes = Wholes(wholes_bytes)
        self._backlog: WriteQueue[Entry] = WriteQueue(self._write, size_of=weight, faults=store.faults)
        self._backlog_bytes = cache_bytes
        self._shared = shared
        self.siblings = siblings
        self._clock = clock
        # Of a chain, the ids of all entries that have it, where the store was asked.
        self._kin: BoundedMap[tuple[str, bytes], tuple[str, ...]] = BoundedMap(_REMEMBERED)
        # Of an entry, when all entries above it were last touched.
        self._renewed: BoundedMap[tuple[str, str], float] = BoundedMap(_REMEMBERED)
        # Of a chain, the number of the last turn recorded here that has it.
        self._latest: BoundedMap[tuple[str, bytes], int] = BoundedMap(_REMEMBERED)
        self.sequence = 0  # turns recorded here

    @property
    def faults(self) -> StoreFaults:
        """What the store could not do."""
        return self._store.faults

    @property
    def unsure(self) -> bool:
        """Whether a turn may be unknown only because a store that others write to was away."""
        return self._store.unsure

    def cached(self, tenant: str, id: str) -> Entry | None:
        """The entry, if it is in memory."""
        return self._shelf.take(tenant, id) or self._backlog.get(tenant, id)

    async def get(self, tenant: str, id: str) -> Entry | None:
        """The entry, or None if this tenant has none of that id."""
        entry = self.cached(tenant, id)
        if entry is None:
            entry = await self._ask(self._store.get(tenant, id))
            if entry is not None:
                self._shelf.add(entry)
        return entry

    async def by_call(self, tenant: str, call_id: str) -> list[Entry]:
        """The entries that made this call: at most one, since call ids are ours and unique."""
        key = call_key(call_id)
        if not key:
            return []
        ids = self._shelf.by_call(tenant, key)
        return await self._all(tenant, ids or await self._ask(self._store.by_call(tenant, key)))

    async def by_chain(self, tenant: str, chain: bytes) -> list[Entry]:
        """All entries with that chain, newest first, at most `NEWEST`."""
        ids = None if self._shared else self._kin.get((tenant, chain))
        if ids is None:
            ids = await self._find_kin(tenant, chain)
        return await self._all(tenant, ids)

    async def version(self) -> int | None:
        """The store's version: the same as before if nobody else has written to it since."""
        return await self._ask(self._store.version()) if self._shared else 0

    def recorded_since(self, tenant: str, chains: Iterable[bytes], sequence: int) -> bool:
        """Whether a turn with one of these chains was recorded here after that many others."""
        latest = self._latest
        return any((latest.get((tenant, chain)) or 0) > sequence for chain in chains)

    async def record(self, entry: Entry, prompt: "array[int]") -> None:
        """Remember a turn; `prompt` is all of its prompt's ids. Does not wait for the disk.

        Only where the store cannot keep up does it wait, so that memory stays bounded, and where
        there are siblings, for a while.
        """
        whole = prompt[:]
        whole.frombytes(entry.generated)
        self._wholes.add(entry, whole)
        self._shelf.add(entry)
        self.sequence += 1
        self._latest.set((entry.tenant, entry.chain), self.sequence)
        kin = self._kin.get((entry.tenant, entry.chain))
        if kin is not None and entry.id not in kin:
            self._kin.set((entry.tenant, entry.chain), (entry.id, *kin)[:NEWEST])
        self._backlog.put(entry)
        if self._backlog.pending_bytes > self._backlog_bytes:
            await self.flush()
        elif self.siblings:
            with suppress(TimeoutError):
                async with asyncio.timeout(ARRIVAL):
                    await self._backlog.wait_written(entry.tenant, entry.id)

    async def whole(self, entry: Entry) -> "array[int] | None":
        """Its prompt and what was generated, without the token that ended it.

        None if an entry above it is gone. The array is shared: it must not be changed.
        """
        line: dict[str, Entry] = {}
        above: Entry | None = entry
        base = self._wholes.get(entry.tenant, entry.id)
        while base is None and above is not None:
            line[above.id] = above
            if above.parent is None:
                base = array(IDS)
                break
            base = self._wholes.get(above.tenant, above.parent)
            above = await self._parent(above, line) if base is None else None
        if base is None:
            return None
        whole = extend(base, reversed(line.values()))
        if whole is not None:
            self._wholes.add(entry, whole)
        return whole

    async def export_chain(self, tenant: str, id: str) -> list[Entry]:
        """An entry and all that it grew from, root first.

        Where an entry above is gone, the first of the list still names it as its parent.
        """
        line: dict[str, Entry] = {}
        above = await self.get(tenant, id)
        while above is not None:
            line[above.id] = above
            above = await self._parent(above, line)
        return list(reversed(line.values()))

    async def by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Ids of the turns of a session, oldest first. StoreError if the store cannot tell."""
        await self.flush()
        return await self._store.by_session(tenant, session_name(session))

    async def sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """The sessions of a tenant, newest first. StoreError if the store cannot tell."""
        await self.flush()
        return await self._store.sessions(tenant)

    async def flush(self) -> None:
        """Wait until all that was recorded is in the store."""
        await self._backlog.flush()

    async def stats(self) -> StoreStats:
        """What the store holds."""
        return await self._store.stats()

    async def close(self) -> None:
        """Flush, and close the store."""
        await self.flush()
        await self._store.close()

    async def _parent(self, entry: Entry, line: dict[str, Entry]) -> Entry | None:
        """The entry above. A line that bites its own tail, as only a damaged store has, ends."""
        if entry.parent is None or entry.parent in line:
            return None
        return await self.get(entry.tenant, entry.parent)

    async def _all(self, tenant: str, ids: tuple[str, ...] | None) -> list[Entry]:
        found = [await self.get(tenant, id) for id in ids or ()]
        return [entry for entry in found if entry is not None]

    async def _find_kin(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """The ids of all entries with that chain: those on their way to the store come first."""
        stored = await self._ask(self._store.by_chain(tenant, chain))
        here = self._shelf.by_chain(tenant, chain)
        if stored is None:
            return here
        kin = (*(id for id in here if id not in stored), *stored)[:NEWEST]
        self._kin.set((tenant, chain), kin)
        return kin

    async def _write(self, entry: Entry) -> None:
        """Store it, and learn now what the next request would have to wait for."""
        await self._store.put(entry)
        if not self._shared and self._kin.get((entry.tenant, entry.chain)) is None:
            await self._find_kin(entry.tenant, entry.chain)
        await self._renew(entry)

    async def _renew(self, entry: Entry) -> None:
        """Keep all turns of a running session as young as its last one, at a small rate."""
        now = self._clock()
        key = (entry.tenant, entry.id)
        if entry.parent is None:
            self._renewed.set(key, now)
            return
        renewed = self._renewed.get((entry.tenant, entry.parent))
        if renewed is not None and now - renewed < RENEW_EVERY:
            self._renewed.set(key, renewed)
            return
        self._renewed.set(key, now)
        line = await self.export_chain(entry.tenant, entry.parent)
        await self._store.touch(entry.tenant, [above.id for above in line])

    async def _ask(self, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except StoreError:  # the store has told
            return None
