"""What is asked for kept responses. Memory first, then the store.

A store that fails makes responses unknown; it never fails an answer.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TypeVar

import msgspec

from dovetail.responses.backend import Clock, Stats, Store
from dovetail.responses.connection_cache import Local
from dovetail.responses.response import KeptResponse, weight
from dovetail.responses.shelf import Shelf
from dovetail.storage.bounded_map import BoundedMap
from dovetail.storage.fault import StoreError
from dovetail.storage.faults import StoreFaults
from dovetail.storage.write_queue import WriteQueue
from dovetail_model import InvalidRequest, PreviousNotFound, TooLarge

RENEW_EVERY = 3600.0  # seconds; well below the age at which stores forget
PATIENCE = 2.0  # seconds that the end of an answer waits for the store

_CACHE = 64 << 20
_AT_ONCE = 8  # responses that are being unpacked: each may be many times what it is on disk
_RENEWED = 16384  # responses of which it is known when they were last used
_LINK = 256  # bytes that each one of a chain counts besides its items: none goes on without end
_SOUND = re.compile(r"[A-Za-z0-9_-]{1,128}")
_T = TypeVar("_T")


class Kept:
    """Responses remembered.

    Whether one is there, the store decides: it bounds what is kept, and other processes may have
    deleted from it. What is in memory here only saves reading it again. `shared` says that there
    may be such processes, `siblings` that one of them may be asked for a response as soon as a
    client has seen it: then `settled` is worth waiting for.
    """

    __slots__ = (
        "_backlog",
        "_cache_bytes",
        "_clock",
        "_reading",
        "_renewed",
        "_shelf",
        "_store",
        "shared",
        "siblings",
    )

    def __init__(
        self,
        store: Store,
        *,
        shared: bool = False,
        siblings: bool = False,
        cache_bytes: int = _CACHE,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self.shared = shared or siblings
        self.siblings = siblings
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._shelf = Shelf(cache_bytes)
        self._backlog: WriteQueue[KeptResponse] = WriteQueue(
            self._write, size_of=weight, faults=store.faults
        )
        # Of a response, when all that it goes on from was last touched.
        self._renewed: BoundedMap[tuple[str, str], float] = BoundedMap(_RENEWED)
        self._reading = asyncio.Semaphore(_AT_ONCE)

    def keep(self, response: KeptResponse) -> None:
        """Remember it, or its newer form. From now on it is found; the disk is not waited for."""
        self._shelf.add(response)
        self._backlog.put(response)

    @property
    def waiting(self) -> int:
        """About how many bytes are not in the store yet."""
        return self._backlog.pending_bytes

    @property
    def faults(self) -> StoreFaults:
        """What the store could not do."""
        return self._store.faults

    async def greet(self) -> None:
        """Have it told in the log, where the store is not there."""
        await self._store.greet()

    async def room(self) -> None:
        """Returns when there is room for more: only where the store cannot keep up is it waited."""
        if self.waiting > self._cache_bytes:
            await self._backlog.flush()

    async def settled(self, response: KeptResponse) -> None:
        """Returns when the response is in the store, or the store has had its time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._backlog.wait_written(response.tenant, response.id)

    async def get(self, tenant: str, id: str) -> KeptResponse | None:
        """The response, or None if this tenant has none of that id."""
        if not is_sound(id):
            return None
        return self._backlog.get(tenant, id) or await self._fetch(tenant, id)

    async def chain(
        self, tenant: str, id: str, limit: int, local: Local | None = None
    ) -> Sequence[KeptResponse]:
        """The response and all before it, the oldest first, without heads.

        PreviousNotFound if one is missing. `limit` bounds the bytes of their items. What the
        connection holds is looked for first.
        """
        if not is_sound(id):
            raise PreviousNotFound("Previous response not found.", param="previous_response_id")
        held = None if local is None else local.chain(id)
        if held is not None:
            return held
        found = await self._walk(tenant, id, limit, whole=True)
        for gone in await self._gone(tenant, [one.id for one in found]):
            raise _missing(id, gone)
        await self._renew(tenant, found)
        return found

    async def outputs(
        self, tenant: str, ids: Sequence[str], limit: int, local: Local | None = None
    ) -> list[bytes]:
        """What these responses answered, up to the first that is not there.

        `limit` bounds the bytes of it all. What they were given is not held meanwhile: packed, it
        may be a thousand times smaller than in memory.
        """
        own: list[bytes] = []
        found: dict[str, bytes] = {}
        size = 0
        for id in dict.fromkeys(ids):
            held = None if local is None else local.chain(id)
            if held is not None:
                own.append(held[-1].output)
                size += len(own[-1])
            elif one := self._at_hand(tenant, id) or await self._fetch(tenant, id):
                found[id] = one.output
                size += len(one.output)
            else:
                break
            if size > limit:
                raise TooLarge(f"The responses that are named have more than {limit} bytes.")
        for gone in await self._gone(tenant, list(found)):
            del found[gone]
        return [*found.values(), *own]

    async def known(self, tenant: str, id: str, limit: int) -> Sequence[KeptResponse]:
        """The response and what is still there before it, the oldest first."""
        found = await self._walk(tenant, id, limit, whole=False)
        gone = set(await self._gone(tenant, [one.id for one in found]))
        behind = takewhile(lambda one: one.id not in gone, reversed(found))
        return list(behind)[::-1]

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it, everywhere. False: there was none. StoreError if the store cannot."""
        if not is_sound(id):
            return False
        await self._backlog.wait_written(tenant, id)
        self._shelf.drop(tenant, id)
        try:
            return await self._store.delete(tenant, id)
        except StoreError as error:  # where it lies and what ails it is not for clients
            raise StoreError("The store of responses does not answer: try again.") from error

    def forget(self, tenant: str, id: str) -> None:
        """Another process has deleted it: it is not shown from memory, whatever the store does."""
        self._shelf.drop(tenant, id)

    async def stats(self) -> Stats:
        """How much the store holds. StoreError if it cannot tell."""
        return await self._store.stats()

    async def close(self) -> None:
        """Write what is left, then close the store."""
        await self._backlog.flush()
        await self._store.close()

    async def _walk(self, tenant: str, id: str, limit: int, *, whole: bool) -> list[KeptResponse]:
        found: list[KeptResponse] = []
        size, above = 0, id
        while True:
            one = self._at_hand(tenant, above) or await self._fetch(tenant, above)
            if one is None and whole:
                raise _missing(id, above)
            if one is None:
                break
            if one.running and whole:
                raise InvalidRequest(
                    f"Previous response with id '{one.id}' is not finished yet.",
                    param="previous_response_id",
                )
            found.append(msgspec.structs.replace(one, head=b""))  # a head may be as large as a body
            size += len(one.input) + len(one.output) + _LINK
            if size > limit:
                raise TooLarge(f"The conversation is larger than {limit} bytes.")
            if one.previous is None:
                break
            above = one.previous
        return found[::-1]

    def _at_hand(self, tenant: str, id: str) -> KeptResponse | None:
        """What is still worked on may be worked on elsewhere: only the store knows how it is."""
        held = self._shelf.get(tenant, id)
        return self._backlog.get(tenant, id) or (None if held and held.running else held)

    async def _fetch(self, tenant: str, id: str) -> KeptResponse | None:
        """From the store. Where that fails, what was known is better than nothing."""
        failed = False
        try:
            async with self._reading:
                found = await self._store.get(tenant, id)
        except StoreError:
            failed, found = True, None
        if found is not None:
            self._shelf.add(found)
        elif failed:
            found = self._shelf.get(tenant, id)
        else:
            self._shelf.drop(tenant, id)
        return found

    async def _gone(self, tenant: str, ids: Sequence[str]) -> list[str]:
        """What was at hand here may be deleted or too old by now: one question for all."""
        written = [id for id in ids if self._backlog.get(tenant, id) is None]
        alive = await self._ask(self._store.alive(tenant, written)) if written else None
        if alive is None:
            return []  # the store cannot tell: what is at hand has to do
        gone = [id for id in written if id not in alive]
        for id in gone:
            self._shelf.drop(tenant, id)
        return gone

    async def _renew(self, tenant: str, chain: Sequence[KeptResponse]) -> None:
        """What is gone on from is in use, and so is all before it."""
        now, last = self._clock(), chain[-1]
        for one in chain:
            self._shelf.touch(tenant, one.id)
        renewed = self._renewed.get((tenant, last.id))
        if renewed is None and last.previous is not None:
            renewed = self._renewed.get((tenant, last.previous))
        elif renewed is None:
            renewed = now  # it is alone, and new or fetched just now
        if renewed is None or now - renewed > RENEW_EVERY:
            renewed = now
            await self._ask(self._store.touch(tenant, [one.id for one in chain]))
        self._renewed.set((tenant, last.id), renewed)

    async def _write(self, response: KeptResponse) -> None:
        await self._store.put(response)

    async def _ask(self, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except StoreError:  # the store has told
            return None


def is_sound(id: str) -> bool:
    """Whether it could be the id of a response at all: clients send anything."""
    return _SOUND.fullmatch(id) is not None


def _missing(id: str, gone: str) -> PreviousNotFound:
    """Which of the chain is gone is told to whom it belongs."""
    message = f"Previous response with id '{id}' not found."
    if gone != id:
        message = f"{message} It goes on from '{gone}', which is not kept any more."
    return PreviousNotFound(message, param="previous_response_id")
