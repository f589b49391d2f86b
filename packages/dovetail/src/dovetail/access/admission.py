"""Limit the number of concurrent requests and queue the others by priority."""

import asyncio
import heapq
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count

from dovetail_model import DovetailError, Hints
from dovetail_protocols import Codec

RETRY_AFTER_SECONDS = 2.0  # sent with errors that a retry, here or elsewhere, may soon avoid
QueuePosition = tuple[float, float, float, int]


class AdmissionController:
    """Admit requests up to a limit and queue the others, the most urgent first.

    Up to `max_running` requests run concurrently, and at most `capacity()`, which may change. Up to
    `max_queued` requests wait, each for at most `queue_timeout` seconds. `on_rejected` is called
    for each rejected request.
    """

    __slots__ = (
        "_capacity",
        "_max_queued",
        "_max_running",
        "_on_rejected",
        "_queue",
        "_queue_timeout",
        "_sequence",
        "queued",
        "running",
    )

    def __init__(
        self,
        max_running: int,
        max_queued: int = 0,
        queue_timeout: float = 60.0,
        on_rejected: Callable[[], None] = lambda: None,
        capacity: Callable[[], int] | None = None,
    ) -> None:
        self._max_running = max_running
        self._capacity = capacity
        self._max_queued = max_queued
        self._queue_timeout = queue_timeout
        self._on_rejected = on_rejected
        self._queue: list[tuple[QueuePosition, asyncio.Future[None]]] = []
        self._sequence = count()
        self.running = 0
        self.queued = 0

    def admit(self, codec: Codec, hints: Hints) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one request while the block runs."""
        return _Slot(self, codec, hints)

    async def acquire(self, codec: Codec, hints: Hints) -> None:
        """Take a slot, which the caller must release. Waits if there is none."""
        if self.running < self._max_running and (
            self._capacity is None or self.running < self._capacity()
        ):
            self.running += 1
        else:
            await self._wait(codec, hints)

    async def _wait(self, codec: Codec, hints: Hints) -> None:
        """Wait until a finished request hands over its slot."""
        if self.queued >= self._max_queued:
            self._on_rejected()
            raise busy_error(codec)
        if len(self._queue) > 2 * self._max_queued:  # most entries are cancelled requests
            self._queue = [waiting for waiting in self._queue if not waiting[1].done()]
            heapq.heapify(self._queue)
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (_queue_position(hints, next(self._sequence)), slot))
        self.queued += 1
        try:
            async with asyncio.timeout(self._queue_timeout):
                await slot
        except BaseException as error:
            if slot.done() and not slot.cancelled():
                self.release()  # the slot was assigned after the wait ended
            slot.cancel()
            if isinstance(error, TimeoutError):
                self._on_rejected()
                raise busy_error(codec) from None
            raise
        finally:
            self.queued -= 1

    def release(self) -> None:
        """Hand the slot to the next request that is still waiting, or free it."""
        while self._queue:
            _, slot = heapq.heappop(self._queue)
            if not slot.done():
                slot.set_result(None)
                return
        self.running -= 1


class _Slot:
    """A slot for one request. A class costs fewer calls than a generator."""

    __slots__ = ("_codec", "_controller", "_hints")

    def __init__(self, controller: AdmissionController, codec: Codec, hints: Hints) -> None:
        self._controller = controller
        self._codec = codec
        self._hints = hints

    async def __aenter__(self) -> None:
        await self._controller.acquire(self._codec, self._hints)

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._controller.release()


def _queue_position(hints: Hints, sequence: int) -> QueuePosition:
    """Return the sort key: strict priority, priority, latency sensitivity, order of arrival."""
    return (
        -(hints.strict_priority or 0),
        -(hints.priority or 0),
        -(hints.latency_sensitivity or 0.0),
        sequence,
    )


def busy_error(codec: Codec) -> DovetailError:
    """Return the error of a server at capacity, of the kind that clients of this API retry."""
    error = codec.overload_error(
        "The server is at its limit of concurrent requests; retry later.",
        retry_after=RETRY_AFTER_SECONDS,
    )
    error.reason = "busy"
    return error
