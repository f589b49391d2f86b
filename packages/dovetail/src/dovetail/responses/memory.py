"""Responses in memory: a size-bounded cache, and a backend without persistence."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from dovetail.responses.backend import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_BYTES,
    Clock,
    ResponseStats,
    StoredResponse,
    response_size,
)
from dovetail.storage.faults import StoreFaults
from dovetail.storage.lru import LruCache

ResponseKey = tuple[str, str]


@dataclass(slots=True)
class _CachedResponse:
    response: StoredResponse
    used_at: float

    @property
    def size(self) -> int:
        return response_size(self.response)


class ResponseCache:
    """An LRU cache keyed by tenant and id. Times are in seconds of the caller's clock."""

    __slots__ = ("_entries", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: LruCache[ResponseKey, _CachedResponse] = LruCache(
            max_size=max_bytes, size_of=attrgetter("size")
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._entries.total_size

    def get(self, tenant: str, id: str) -> StoredResponse | None:
        entry = self._entries.peek((tenant, id))
        return None if entry is None else entry.response

    def put(self, response: StoredResponse, now: float = 0.0) -> None:
        """Cache a response or replace its older version, unless it exceeds the cache size."""
        key = (response.tenant, response.id)
        if response_size(response) > self._max_bytes:
            self.remove(*key)
        else:
            self._entries.put(key, _CachedResponse(response, now))

    def touch(self, tenant: str, id: str, now: float = 0.0) -> bool:
        """Mark a response as used. Returns False if it is not cached."""
        entry = self._entries.get((tenant, id))
        if entry is None:
            return False
        entry.used_at = now
        return True

    def remove(self, tenant: str, id: str) -> bool:
        return self._entries.pop((tenant, id)) is not None

    def remove_older(self, oldest: float) -> None:
        """Remove all responses that were last used before `oldest`."""
        while (first := self._entries.oldest()) is not None and first[1].used_at < oldest:
            self._entries.pop_oldest()


class MemoryResponseBackend:
    """A backend for tests, trials, and servers without persistent storage."""

    __slots__ = ("_cache", "_clock", "_max_age", "faults")

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age: float = DEFAULT_MAX_AGE_SECONDS,
        clock: Clock = time.time,
    ) -> None:
        self._cache = ResponseCache(max_bytes)
        self._max_age = max_age
        self._clock = clock
        self.faults = StoreFaults("responses")

    async def ping(self) -> None:
        """Do nothing: memory is always available."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the response, or None if the tenant has no response with this id."""
        self._expire()
        return self._cache.get(tenant, id)

    async def put(self, response: StoredResponse) -> None:
        """Store a response."""
        self._cache.put(response, self._expire())

    async def swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Replace a response, unless the stored one is no longer `old`."""
        now = self._expire()
        if self._cache.get(old.tenant, old.id) != old:
            return False
        self._cache.put(new, now)
        return True

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response. Returns False if it does not exist."""
        self._expire()
        return self._cache.remove(tenant, id)

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Return the ids that exist."""
        self._expire()
        return {id for id in ids if self._cache.get(tenant, id) is not None}

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """Mark responses as used."""
        now = self._expire()
        for id in ids:
            self._cache.touch(tenant, id, now)

    async def stats(self) -> ResponseStats:
        """Count the stored responses."""
        self._expire()
        return ResponseStats(len(self._cache), self._cache.size_bytes)

    async def close(self) -> None:
        """Do nothing: memory needs no cleanup."""

    def _expire(self) -> float:
        now = self._clock()
        self._cache.remove_older(now - self._max_age)
        return now
