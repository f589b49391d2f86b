"""Responses in this process's memory: gone with it."""

import time
from collections.abc import Sequence

from dovetail.responses.backend import MAX_AGE, MAX_BYTES, Clock, Stats
from dovetail.responses.response import KeptResponse
from dovetail.responses.shelf import Shelf
from dovetail.storage.faults import StoreFaults


class MemoryResponses:
    """For tests, for trials, and for those who want nothing on disk."""

    __slots__ = ("_clock", "_max_age", "_shelf", "faults")

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_age: float = MAX_AGE, clock: Clock = time.time
    ) -> None:
        self._shelf = Shelf(max_bytes)
        self._max_age = max_age
        self._clock = clock
        self.faults = StoreFaults("responses")

    async def greet(self) -> None:
        """It is always there."""

    async def get(self, tenant: str, id: str) -> KeptResponse | None:
        """The response, or None if this tenant has none of that id."""
        self._expire()
        return self._shelf.get(tenant, id)

    async def put(self, response: KeptResponse) -> None:
        """Keep it."""
        self._shelf.add(response, self._expire())

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget it."""
        self._expire()
        return self._shelf.drop(tenant, id)

    async def alive(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Which of these are there."""
        self._expire()
        return {id for id in ids if self._shelf.get(tenant, id) is not None}

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """These were used again."""
        now = self._expire()
        for id in ids:
            self._shelf.touch(tenant, id, now)

    async def stats(self) -> Stats:
        """How much is held."""
        self._expire()
        return Stats(len(self._shelf), self._shelf.weight)

    async def close(self) -> None:
        """Nothing to finish."""

    def _expire(self) -> float:
        now = self._clock()
        self._shelf.drop_before(now - self._max_age)
        return now
