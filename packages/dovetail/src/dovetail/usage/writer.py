"""Collect the usage of a process and write it in batches, off the path of requests."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from dovetail.storage.faults import StoreError
from dovetail.telemetry.record import RequestRecord
from dovetail.usage.counts import UsageKey, count_request, floor_hour
from dovetail.usage.prices import NO_PRICES, Prices
from dovetail.usage.store import (
    HEARTBEAT_SECONDS,
    FinishedRequest,
    OpenRequest,
    Spent,
    SpentKey,
    UsageBatch,
    UsageStore,
)

LINGER_SECONDS = 0.02  # requests of this time are written together
FLUSH_SECONDS = 1.0  # a request waits at most this long for the usage of others
RETRY_SECONDS = 1.0  # while the store is unavailable
MAX_PENDING = 100_000  # finished requests that wait for the store; further ones are lost


class UsageWriter:
    """Announces and finishes the requests of one process.

    All methods must be called on one event loop. `begin` and `finish` only append to a list.
    """

    __slots__ = (
        "_applied",
        "_batch_done",
        "_clock",
        "_closing",
        "_drain_task",
        "_finished",
        "_maintain_task",
        "_next_batch",
        "_next_request",
        "_opened",
        "_process",
        "_running",
        "_timer",
        "store",
    )

    def __init__(self, store: UsageStore, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._process = uuid.uuid4().hex
        self._next_request = self._next_batch = 1
        self._running: dict[int, tuple[OpenRequest, Prices]] = {}
        self._opened: dict[int, OpenRequest] = {}  # not announced yet
        self._finished: list[FinishedRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._maintain_task: asyncio.Task[None] | None = None
        self._closing = False
        self._applied = 0  # number of the last batch that was written or lost
        self._batch_done = asyncio.Event()

    def start(self) -> None:
        """Start the heartbeats."""
        self._maintain_task = asyncio.create_task(self._maintain())

    def begin(self, key: UsageKey, prices: Prices = NO_PRICES, age: float = 0.0) -> int:
        """Announce a request that arrived `age` seconds ago. Returns its number."""
        number, self._next_request = self._next_request, self._next_request + 1
        request = OpenRequest(number, floor_hour(self._clock() - age), key)
        self._running[number] = (request, prices)
        self._opened[number] = request
        self._schedule()
        return number

    def finish(self, number: int, record: RequestRecord) -> None:
        """Finish a request with its record."""
        request, prices = self._running.pop(number)
        announced = self._opened.pop(number, None) is None
        if len(self._finished) >= MAX_PENDING:
            self.store.faults.record_loss()
            return
        self._finished.append(FinishedRequest(request, count_request(record, prices), announced))
        self._schedule()

    async def flush(self) -> None:
        """Wait until everything up to now is written, but not for an unavailable store."""
        last = self._next_batch if self._opened or self._finished else self._next_batch - 1
        if self._applied < last:
            self._start_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._applied < last and not self.store.faults.unavailable:
                    await self._batch_done.wait()

    async def read_spent(self, keys: list[SpentKey]) -> list[Spent]:
        """Return what was spent in budget periods, including all requests that have finished here.

        Raises StoreError if the store is unavailable.
        """
        await self.flush()
        return await self.store.read_spent(keys)

    async def close(self) -> None:
        """Write what is pending, without waiting for a store that is unavailable, and close it."""
        self._closing = True
        if self._maintain_task is not None:
            self._maintain_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._maintain_task
        self._start_drain()
        if self._drain_task is not None:
            await self._drain_task
        await self.store.close()

    @property
    def _is_draining(self) -> bool:
        return self._drain_task is not None and not self._drain_task.done()

    def _schedule(self) -> None:
        if self._timer is None and not self._is_draining:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LINGER_SECONDS, self._start_drain)

    def _start_drain(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_draining:
            self._drain_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        while self._opened or self._finished:
            batch = UsageBatch(
                self._process, self._next_batch, tuple(self._opened.values()), tuple(self._finished)
            )
            self._next_batch += 1
            self._opened, self._finished = {}, []
            applied = await self._apply(batch)
            self._applied = batch.number
            self._wake()
            if not applied:
                return

    async def _apply(self, batch: UsageBatch) -> bool:
        """Apply a batch, again and again while the store is unavailable. Returns whether it was."""
        faults = self.store.faults
        while True:
            try:
                await self.store.apply(batch)
            except StoreError as error:
                faults.pending = len(batch.finished) + len(self._finished)
                self._wake()
                if self._closing:
                    for _ in range(faults.pending):
                        faults.record_loss(error)
                    return False
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:  # it would fail again: the next batches must not wait
                for _ in batch.finished:
                    faults.record_loss(error)
                return True
            else:
                faults.pending = 0
                return True

    def _wake(self) -> None:
        """Wake the callers of `flush`."""
        done, self._batch_done = self._batch_done, asyncio.Event()
        done.set()

    async def _maintain(self) -> None:
        while True:
            with suppress(StoreError):  # it is counted and logged
                await self.store.maintain(self._process if self._running else None)
            await asyncio.sleep(HEARTBEAT_SECONDS)
