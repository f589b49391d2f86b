"""An ordered queue of background writes that counts failed writes."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from dovetail.storage.faults import StoreFaults

ItemKey = tuple[str, str]  # tenant and id

_BATCH_SIZE = 64


class TenantItem(Protocol):
    """An item of the queue: it has a tenant and an id that is unique for the tenant."""

    @property
    def tenant(self) -> str: ...

    @property
    def id(self) -> str: ...


_T = TypeVar("_T", bound=TenantItem)


class WriteQueue(Generic[_T]):
    """Writes items to a store in the background. Pending items can be read from the queue.

    `write` is called with each item; its errors are counted in `faults`. `size_of` estimates the
    bytes of an item. Of two items with the same id the later one is always written.
    """

    __slots__ = (
        "_batch_done",
        "_faults",
        "_pending",
        "_pending_bytes",
        "_size_of",
        "_task",
        "_write",
    )

    def __init__(
        self,
        write: Callable[[_T], Awaitable[None]],
        *,
        size_of: Callable[[_T], int],
        faults: StoreFaults,
    ) -> None:
        self._write = write
        self._size_of = size_of
        self._faults = faults
        self._pending: dict[ItemKey, _T] = {}
        self._pending_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._batch_done = asyncio.Event()  # set when the current batch is written

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes of the pending items."""
        return self._pending_bytes

    def get(self, tenant: str, id: str) -> _T | None:
        """Return a pending item, or None if it is written or unknown."""
        return self._pending.get((tenant, id))

    def put(self, item: _T) -> None:
        """Queue an item."""
        key = (item.tenant, item.id)
        before = self._pending.get(key)
        if before is item:
            return
        if before is not None:
            self._pending_bytes -= self._size_of(before)
        self._pending[key] = item
        self._pending_bytes += self._size_of(item)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())

    async def flush(self) -> None:
        """Wait until the queue is empty."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def wait_written(self, tenant: str, id: str) -> None:
        """Wait until this item is written, but not for later items."""
        while (tenant, id) in self._pending:
            await self._batch_done.wait()

    async def _drain(self) -> None:
        """Write items in batches, so that the store can use one transaction per batch."""
        while self._pending:
            batch = list(islice(self._pending.items(), _BATCH_SIZE))
            results = await self._write_all([one for _, one in batch])
            for (key, one), result in zip(batch, results, strict=True):
                if self._pending[key] is one:
                    del self._pending[key]
                    self._pending_bytes -= self._size_of(one)
                if isinstance(result, BaseException):
                    self._faults.record_loss(result)
            done, self._batch_done = self._batch_done, asyncio.Event()
            done.set()

    async def _write_all(self, items: list[_T]) -> list[BaseException | None]:
        """Write items and return their errors. A single item, the usual case, needs no task."""
        if len(items) > 1:
            return await asyncio.gather(*map(self._write, items), return_exceptions=True)
        try:
            await self._write(items[0])
        except Exception as error:
            return [error]
        return [None]
