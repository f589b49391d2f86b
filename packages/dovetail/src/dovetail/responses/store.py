"""Look up and store responses: memory first, then the backend.

If the backend fails, responses are not found, but no request fails because of it.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
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

TOUCH_INTERVAL_SECONDS = 3600.0  # well below the age at which backends expire responses
STORE_TIMEOUT_SECONDS = 3.0  # how long the end of a response waits for the backend

_DEFAULT_CACHE_BYTES = 64 << 20
_MAX_CONCURRENT_READS = 8  # a decompressed response can be many times its size on disk
_MAX_TOUCHED = 16384  # responses whose last touch is tracked
_MAX_RUNS = 16384  # background responses that are tracked; more than a process runs
CHAIN_LINK_BYTES = 256  # counted per response, to limit the length of a chain
_VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_T = TypeVar("_T")


class ResponseStore:
    """Stores responses in a backend, with a cache in memory.

    The backend decides which responses exist: it evicts responses, and other processes may delete
    them. The cache only saves reads.

    `shared`: other processes use the backend.
    `has_peers`: another worker process may receive a request for a response as soon as the client
    has its id, so callers must use `wait_stored`.
    """

    __slots__ = (
        "_backend",
        "_cache",
        "_cache_bytes",
        "_clock",
        "_created_runs",
        "_read_slots",
        "_touched",
        "_write_timeout_seconds",
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
        write_timeout_seconds: float = STORE_TIMEOUT_SECONDS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._backend = backend
        self.shared = shared or has_peers
        self.has_peers = has_peers
        self._cache_bytes = cache_bytes
        self._write_timeout_seconds = write_timeout_seconds
        self._clock = clock
        self._cache = ResponseCache(cache_bytes)
        self._writes: WriteQueue[StoredResponse] = WriteQueue(
            self._write, size_of=response_size, faults=backend.faults
        )
        # Background responses that this process runs and has stored.
        self._created_runs: LruCache[tuple[str, str], bool] = LruCache(_MAX_RUNS)
        # The time at which the chain of a response was last touched.
        self._touched: LruCache[tuple[str, str], float] = LruCache(_MAX_TOUCHED)
        self._read_slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    def put(self, response: StoredResponse) -> None:
        """Store a response or its newer version. Readers find it even before it is written."""
        self._cache.put(response)
        self._writes.put(response)

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes that are not yet written to the backend."""
        return self._writes.pending_bytes

    @property
    def faults(self) -> StoreFaults:
        """Failures of the backend."""
        return self._backend.faults

    async def ping(self) -> None:
        """Check the backend and log a failure."""
        await self._backend.ping()

    async def drain(self) -> None:
        """Wait until pending writes are done if they exceed the cache size."""
        if self.pending_bytes > self._cache_bytes:
            await self._writes.flush()

    async def wait_stored(self, response: StoredResponse) -> None:
        """Wait until the response is in the backend, up to the write timeout."""
        try:
            async with asyncio.timeout(self._write_timeout_seconds):
                await self._writes.wait_written(response.tenant, response.id)
        except TimeoutError:
            self.faults.record_late()

    async def add(self, response: StoredResponse) -> None:
        """Store a response and return when it is stored. Raises StoreError if that fails."""
        self._cache.put(response)
        with _public_errors():
            await self._backend.put(response)

    async def swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Replace a response, unless it was changed meanwhile. Returns whether it was replaced.

        Raises StoreError if the backend fails.
        """
        with _public_errors():
            swapped = await self._backend.swap(old, new)
        if swapped:
            self._cache.put(new)
        return swapped

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the response, or None if the tenant has no response with this id."""
        if not is_valid_id(id):
            return None
        return self._writes.get(tenant, id) or await self._fetch(tenant, id)

    async def get_chain(
        self, tenant: str, id: str, limit: int, local: ConnectionCache | None = None
    ) -> Sequence[StoredResponse]:
        """Return the response and its predecessors, oldest first, without heads.

        Raises PreviousResponseNotFound if one is missing. `limit` is the maximum size of their
        items in bytes. The cache of the connection, `local`, is searched first.
        """
        if not is_valid_id(id):
            raise PreviousResponseNotFound(
                "Previous response not found.", param="previous_response_id"
            )
        cached = None if local is None else local.get_chain(id)
        if cached is not None:
            return cached
        chain = await self._walk(tenant, id, limit, whole=True)
        for missing in await self._find_missing(tenant, [one.id for one in chain]):
            raise _previous_not_found(id, missing)
        await self._touch_chain(tenant, chain)
        return chain

    async def get_outputs(
        self, tenant: str, ids: Sequence[str], limit: int, local: ConnectionCache | None = None
    ) -> list[bytes]:
        """Return the outputs of these responses, up to the first that does not exist.

        `limit` is the maximum total size in bytes. Inputs are dropped immediately: decompressed,
        they can be a thousand times larger than stored.
        """
        own: list[bytes] = []
        found: dict[str, bytes] = {}
        size = 0
        for id in dict.fromkeys(ids):
            cached = None if local is None else local.get_chain(id)
            if cached is not None:
                own.append(cached[-1].output)
                size += len(own[-1])
            elif one := self._get_cached(tenant, id) or await self._fetch(tenant, id):
                found[id] = one.output
                size += len(one.output)
            else:
                break
            if size > limit:
                raise RequestTooLarge(f"The referenced responses exceed {limit} bytes.")
        for missing in await self._find_missing(tenant, list(found)):
            del found[missing]
        return [*found.values(), *own]

    async def get_available_chain(
        self, tenant: str, id: str, limit: int
    ) -> Sequence[StoredResponse]:
        """Return the response and its predecessors that still exist, oldest first."""
        chain = await self._walk(tenant, id, limit, whole=False)
        missing = set(await self._find_missing(tenant, [one.id for one in chain]))
        available = takewhile(lambda one: one.id not in missing, reversed(chain))
        return list(available)[::-1]

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response from backend and cache. Returns False if it does not exist.

        Raises StoreError if the backend fails.
        """
        if not is_valid_id(id):
            return False
        await self._writes.wait_written(tenant, id)
        self._cache.remove(tenant, id)
        with _public_errors():
            return await self._backend.delete(tenant, id)

    def evict(self, tenant: str, id: str) -> None:
        """Remove a response from the cache after another process deleted it."""
        self._cache.remove(tenant, id)

    async def stats(self) -> ResponseStats:
        """Count the responses in the backend. Raises StoreError if it fails."""
        return await self._backend.stats()

    async def close(self) -> None:
        """Finish pending writes, then close the backend."""
        await self._writes.flush()
        await self._backend.close()

    async def _walk(self, tenant: str, id: str, limit: int, *, whole: bool) -> list[StoredResponse]:
        chain: list[StoredResponse] = []
        size, current = 0, id
        while True:
            one = self._get_cached(tenant, current) or await self._fetch(tenant, current)
            if one is None and whole:
                raise _previous_not_found(id, current)
            if one is None:
                break
            if one.running and whole:
                raise InvalidRequest(
                    f"Previous response with id '{one.id}' is not finished yet.",
                    param="previous_response_id",
                )
            chain.append(msgspec.structs.replace(one, head=b""))  # heads can be large
            size += len(one.input) + len(one.output) + CHAIN_LINK_BYTES
            if size > limit:
                raise RequestTooLarge(f"The conversation exceeds the limit of {limit} bytes.")
            if one.previous is None:
                break
            current = one.previous
        return chain[::-1]

    def _get_cached(self, tenant: str, id: str) -> StoredResponse | None:
        """Return a cached response, unless it was running: another process may have updated it."""
        cached = self._cache.get(tenant, id)
        return self._writes.get(tenant, id) or (None if cached and cached.running else cached)

    async def _fetch(self, tenant: str, id: str) -> StoredResponse | None:
        """Read a response from the backend, or from the cache if the backend fails."""
        failed = False
        try:
            async with self._read_slots:
                response = await self._backend.get(tenant, id)
        except StoreError:
            failed, response = True, None
        if response is not None:
            self._cache.put(response)
        elif failed:
            response = self._cache.get(tenant, id)
        else:
            self._cache.remove(tenant, id)
        return response

    async def _find_missing(self, tenant: str, ids: Sequence[str]) -> list[str]:
        """Return the ids that no longer exist in the backend, with a single query."""
        written = [id for id in ids if self._writes.get(tenant, id) is None]
        existing = (
            await self._query(self._backend.get_existing_ids(tenant, written)) if written else None
        )
        if existing is None:
            return []  # the backend failed: use the cached responses
        missing = [id for id in written if id not in existing]
        for id in missing:
            self._cache.remove(tenant, id)
        return missing

    async def _touch_chain(self, tenant: str, chain: Sequence[StoredResponse]) -> None:
        """Mark a continued response and its predecessors as used."""
        now, last = self._clock(), chain[-1]
        for one in chain:
            self._cache.touch(tenant, one.id)
        touched_at = self._touched.peek((tenant, last.id))
        if touched_at is None and last.previous is not None:
            touched_at = self._touched.peek((tenant, last.previous))
        elif touched_at is None:
            touched_at = now  # a single response that is new or was just read
        if touched_at is None or now - touched_at > TOUCH_INTERVAL_SECONDS:
            touched_at = now
            await self._query(self._backend.touch(tenant, [one.id for one in chain]))
        self._touched.put((tenant, last.id), touched_at)

    async def _write(self, response: StoredResponse) -> None:
        key, lost = (response.tenant, response.id), self.faults.lost
        if self._created_runs.peek(key):
            if not response.running:
                self._created_runs.pop(key)
            await self._write_run(response)
            return
        await self._backend.put(response)
        is_run = self.shared and response.background and response.running
        if is_run and self.faults.lost == lost:
            self._created_runs.put(key, True)

    async def _write_run(self, response: StoredResponse) -> None:
        """Write the newer state of a run, unless another process has ended or deleted it.

        A response that a client saw as cancelled or deleted must not return.
        """
        while True:
            stored = await self._backend.get(response.tenant, response.id)
            if stored is None or not stored.running:
                break
            if await self._backend.swap(stored, response):
                return
        if stored is None:
            self._cache.remove(response.tenant, response.id)
        else:
            self._cache.put(stored)

    async def _query(self, operation: Awaitable[_T]) -> _T | None:
        try:
            return await operation
        except StoreError:  # already logged
            return None


@contextmanager
def _public_errors() -> Iterator[None]:
    """Replace the errors of the backend: clients do not see its location and the reason."""
    try:
        yield
    except StoreError as error:
        raise StoreError("The response store is unavailable; retry later.") from error


def is_valid_id(id: str) -> bool:
    """Return whether the string has the form of a response id."""
    return _VALID_ID.fullmatch(id) is not None


def _previous_not_found(id: str, missing: str) -> PreviousResponseNotFound:
    """Build the error for a chain with a missing response, which it names."""
    message = f"Previous response with id '{id}' not found."
    if missing != id:
        message = f"{message} It continues response '{missing}', which is no longer stored."
    return PreviousResponseNotFound(message, param="previous_response_id")
