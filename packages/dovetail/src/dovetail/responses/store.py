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

from dovetail.responses.backend import (
    Clock,
    ResponseBackend,
    ResponseStats,
    StoredResponse,
    response_size,
)
from dovetail.responses.connection_cache import ConnectionCache
from dovetail.responses.memory import ResponseCache
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.lru import LruCache
from dovetail.storage.write_queue import WriteQueue
from dovetail_model import InvalidRequest, PreviousResponseNotFound, RequestTooLarge

TOUCH_INTERVAL_SECONDS = 3600.0  # seconds; well below the age at which stores forget
STORE_TIMEOUT_SECONDS = 2.0  # seconds that the end of an answer waits for the store

_DEFAULT_CACHE_BYTES = 64 << 20
_MAX_CONCURRENT_READS = (
    8  # responses that are being unpacked: each may be many times what it is on disk
)
_MAX_TOUCHED = 16384  # responses of which it is known when they were last used
_CHAIN_LINK_BYTES = (
    256  # bytes that each one of a chain counts besides its items: none goes on without end
)
_VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_T = TypeVar("_T")


class ResponseStore:
    """Responses remembered.

    Whether one is there, the store decides: it bounds what is kept, and other processes may have
    deleted from it. What is in memory here only saves reading it again. `shared` says that there
    may be such processes, `siblings` that one of them may be asked for a response as soon as a
    client has seen it: then `settled` is worth waiting for.
    """

    __slots__ = (
        "_backend",
        "_cache",
        "_cache_bytes",
        "_clock",
        "_read_slots",
        "_touched",
        "_writes",
        "has_peers",
        "shared",
    )

    def __init__(
        self,
        backend: ResponseBackend,
        *,
        shared: bool = False,
        has_peers: bool = False,
        cache_bytes: int = _DEFAULT_CACHE_BYTES,
        clock: Clock = time.monotonic,
    ) -> None:
        self._backend = backend
        self.shared = shared or has_peers
        self.has_peers = has_peers
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._cache = ResponseCache(cache_bytes)
        self._writes: WriteQueue[StoredResponse] = WriteQueue(
            self._write, size_of=response_size, faults=backend.faults
        )
        # Of a response, when all that it goes on from was last touched.
        self._touched: LruCache[tuple[str, str], float] = LruCache(_MAX_TOUCHED)
        self._read_slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    def put(self, response: StoredResponse) -> None:
        """Remember it, or its newer form. From now on it is found; the disk is not waited for."""
        self._cache.put(response)
        self._writes.put(response)

    @property
    def pending_bytes(self) -> int:
        """About how many bytes are not in the store yet."""
        return self._writes.pending_bytes

    @property
    def faults(self) -> StoreFaults:
        """What the store could not do."""
        return self._backend.faults

    async def ping(self) -> None:
        """Have it told in the log, where the store is not there."""
        await self._backend.ping()

    async def drain(self) -> None:
        """Returns when there is room for more: only where the store cannot keep up is it waited."""
        if self.pending_bytes > self._cache_bytes:
            await self._writes.flush()

    async def wait_stored(self, response: StoredResponse) -> None:
        """Returns when the response is in the store, or the store has had its time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                await self._writes.wait_written(response.tenant, response.id)

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """The response, or None if this tenant has none of that id."""
        if not is_valid_id(id):
            return None
        return self._writes.get(tenant, id) or await self._fetch(tenant, id)

    async def get_chain(
        self, tenant: str, id: str, limit: int, local: ConnectionCache | None = None
    ) -> Sequence[StoredResponse]:
        """The response and all before it, the oldest first, without heads.

        PreviousNotFound if one is missing. `limit` bounds the bytes of their items. What the
        connection holds is looked for first.
        """
        if not is_valid_id(id):
            raise PreviousResponseNotFound(
                "Previous response not found.", param="previous_response_id"
            )
        held = None if local is None else local.get_chain(id)
        if held is not None:
            return held
        found = await self._walk(tenant, id, limit, whole=True)
        for gone in await self._find_missing(tenant, [one.id for one in found]):
            raise _previous_not_found(id, gone)
        await self._touch_chain(tenant, found)
        return found

    async def get_outputs(
        self, tenant: str, ids: Sequence[str], limit: int, local: ConnectionCache | None = None
    ) -> list[bytes]:
        """What these responses answered, up to the first that is not there.

        `limit` bounds the bytes of it all. What they were given is not held meanwhile: packed, it
        may be a thousand times smaller than in memory.
        """
        own: list[bytes] = []
        found: dict[str, bytes] = {}
        size = 0
        for id in dict.fromkeys(ids):
            held = None if local is None else local.get_chain(id)
            if held is not None:
                own.append(held[-1].output)
                size += len(own[-1])
            elif one := self._get_cached(tenant, id) or await self._fetch(tenant, id):
                found[id] = one.output
                size += len(one.output)
            else:
                break
            if size > limit:
                raise RequestTooLarge(f"The responses that are named have more than {limit} bytes.")
        for gone in await self._find_missing(tenant, list(found)):
            del found[gone]
        return [*found.values(), *own]

    async def get_available_chain(
        self, tenant: str, id: str, limit: int
    ) -> Sequence[StoredResponse]:
        """The response and what is still there before it, the oldest first."""
        found = await self._walk(tenant, id, limit, whole=False)
        gone = set(await self._find_missing(tenant, [one.id for one in found]))
        behind = takewhile(lambda one: one.id not in gone, reversed(found))
        return list(behind)[::-1]

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it, everywhere. False: there was none. StoreError if the store cannot."""
        if not is_valid_id(id):
            return False
        await self._writes.wait_written(tenant, id)
        self._cache.remove(tenant, id)
        try:
            return await self._backend.delete(tenant, id)
        except StoreError as error:  # where it lies and what ails it is not for clients
            raise StoreError("The store of responses does not answer: try again.") from error

    def evict(self, tenant: str, id: str) -> None:
        """Another process has deleted it: it is not shown from memory, whatever the store does."""
        self._cache.remove(tenant, id)

    async def stats(self) -> ResponseStats:
        """How much the store holds. StoreError if it cannot tell."""
        return await self._backend.stats()

    async def close(self) -> None:
        """Write what is left, then close the store."""
        await self._writes.flush()
        await self._backend.close()

    async def _walk(self, tenant: str, id: str, limit: int, *, whole: bool) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        size, above = 0, id
        while True:
            one = self._get_cached(tenant, above) or await self._fetch(tenant, above)
            if one is None and whole:
                raise _previous_not_found(id, above)
            if one is None:
                break
            if one.running and whole:
                raise InvalidRequest(
                    f"Previous response with id '{one.id}' is not finished yet.",
                    param="previous_response_id",
                )
            found.append(msgspec.structs.replace(one, head=b""))  # a head may be as large as a body
            size += len(one.input) + len(one.output) + _CHAIN_LINK_BYTES
            if size > limit:
                raise RequestTooLarge(f"The conversation is larger than {limit} bytes.")
            if one.previous is None:
                break
            above = one.previous
        return found[::-1]

    def _get_cached(self, tenant: str, id: str) -> StoredResponse | None:
        """What is still worked on may be worked on elsewhere: only the store knows how it is."""
        held = self._cache.get(tenant, id)
        return self._writes.get(tenant, id) or (None if held and held.running else held)

    async def _fetch(self, tenant: str, id: str) -> StoredResponse | None:
        """From the store. Where that fails, what was known is better than nothing."""
        failed = False
        try:
            async with self._read_slots:
                found = await self._backend.get(tenant, id)
        except StoreError:
            failed, found = True, None
        if found is not None:
            self._cache.put(found)
        elif failed:
            found = self._cache.get(tenant, id)
        else:
            self._cache.remove(tenant, id)
        return found

    async def _find_missing(self, tenant: str, ids: Sequence[str]) -> list[str]:
        """What was at hand here may be deleted or too old by now: one question for all."""
        written = [id for id in ids if self._writes.get(tenant, id) is None]
        alive = (
            await self._query(self._backend.get_existing_ids(tenant, written)) if written else None
        )
        if alive is None:
            return []  # the store cannot tell: what is at hand has to do
        gone = [id for id in written if id not in alive]
        for id in gone:
            self._cache.remove(tenant, id)
        return gone

    async def _touch_chain(self, tenant: str, chain: Sequence[StoredResponse]) -> None:
        """What is gone on from is in use, and so is all before it."""
        now, last = self._clock(), chain[-1]
        for one in chain:
            self._cache.touch(tenant, one.id)
        renewed = self._touched.peek((tenant, last.id))
        if renewed is None and last.previous is not None:
            renewed = self._touched.peek((tenant, last.previous))
        elif renewed is None:
            renewed = now  # it is alone, and new or fetched just now
        if renewed is None or now - renewed > TOUCH_INTERVAL_SECONDS:
            renewed = now
            await self._query(self._backend.touch(tenant, [one.id for one in chain]))
        self._touched.put((tenant, last.id), renewed)

    async def _write(self, response: StoredResponse) -> None:
        await self._backend.put(response)

    async def _query(self, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except StoreError:  # the store has told
            return None


def is_valid_id(id: str) -> bool:
    """Whether it could be the id of a response at all: clients send anything."""
    return _VALID_ID.fullmatch(id) is not None


def _previous_not_found(id: str, gone: str) -> PreviousResponseNotFound:
    """Which of the chain is gone is told to whom it belongs."""
    message = f"Previous response with id '{id}' not found."
    if gone != id:
        message = f"{message} It goes on from '{gone}', which is not kept any more."
    return PreviousResponseNotFound(message, param="previous_response_id")
