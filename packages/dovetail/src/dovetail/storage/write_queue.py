"""Writes that nobody waits for: done in the background, in their order, and never lost silently."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from dovetail.storage.faults import Faults

Key = tuple[str, str]  # tenant and id

_AT_ONCE = 64


class Owned(Protocol):
    """What can be waiting: it has an owner, and an id that is the owner's alone."""

    @property
    def tenant(self) -> str: ...

    @property
    def id(self) -> str: ...


_T = TypeVar("_T", bound=Owned)


class Backlog(Generic[_T]):
    """Things on their way to the store. Until they are there, they are found here.

    `write` gets each of them; what it raises is among the `faults`. `weigh` says about how many
    bytes one takes. Of two with the same id the later one is written in any case.
    """

    __slots__ = ("_faults", "_round", "_task", "_waiting", "_weigh", "_weight", "_write")

    def __init__(
        self,
        write: Callable[[_T], Awaitable[None]],
        *,
        weigh: Callable[[_T], int],
        faults: Faults,
    ) -> None:
        self._write = write
        self._weigh = weigh
        self._faults = faults
        self._waiting: dict[Key, _T] = {}
        self._weight = 0
        self._task: asyncio.Task[None] | None = None
        self._round = asyncio.Event()  # set when those that are being written are done

    @property
    def weight(self) -> int:
        """About how many bytes wait."""
        return self._weight

    def get(self, tenant: str, id: str) -> _T | None:
        """One that is not written yet."""
        return self._waiting.get((tenant, id))

    def add(self, one: _T) -> None:
        """Have it written soon."""
        key = (one.tenant, one.id)
        before = self._waiting.get(key)
        if before is one:
            return
        if before is not None:
            self._weight -= self._weigh(before)
        self._waiting[key] = one
        self._weight += self._weigh(one)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())

    async def flush(self) -> None:
        """Wait until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def written(self, tenant: str, id: str) -> None:
        """Wait until this one does not wait any more, whatever else does."""
        while (tenant, id) in self._waiting:
            await self._round.wait()

    async def _drain(self) -> None:
        """Many at once, so that a store can make one transaction of them."""
        while self._waiting:
            batch = list(islice(self._waiting.items(), _AT_ONCE))
            writes = [self._write(one) for _, one in batch]
            results = await asyncio.gather(*writes, return_exceptions=True)
            for (key, one), result in zip(batch, results, strict=True):
                if self._waiting[key] is one:
                    del self._waiting[key]
                    self._weight -= self._weigh(one)
                if isinstance(result, BaseException):
                    self._faults.lose(result)
            done, self._round = self._round, asyncio.Event()
            done.set()
