"""Responses in this process's memory: gone with it."""

import time
from collections.abc import Sequence

from dovetail.responses.backend import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_BYTES,
    Clock,
    ResponseStats,
)
from dovetail.responses.response import StoredResponse
from dovetail.responses.shelf import ResponseCache
from dovetail.storage.faults import StoreFaults


class MemoryResponseBackend:
    """For tests, for trials, and for those who want nothing on disk."""

    __slots__ = ("_clock", "_max_age", "_cache", "faults")

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
        """It is always there."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """The response, or None if this tenant has none of that id."""
        self._expire()
        return self._cache.get(tenant, id)

    async def put(self, response: StoredResponse) -> None:
        """Keep it."""
        self._cache.put(response, self._expire())

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it."""
        self._expire()
        return self._cache.remove(tenant, id)

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these are there."""
        self._expire()
        return {id for id in ids if self._cache.get(tenant, id) is not None}

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """These were used again."""
        now = self._expire()
        for id in ids:
            self._cache.touch(tenant, id, now)

    async def stats(self) -> ResponseStats:
        """How much is held."""
        self._expire()
        return ResponseStats(len(self._cache), self._cache.size_bytes)

    async def close(self) -> None:
        """Nothing to finish."""

    def _expire(self) -> float:
        now = self._clock()
        self._cache.remove_older(now - self._max_age)
        return now
