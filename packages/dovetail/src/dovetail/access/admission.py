"""How many requests are worked on at once, and who comes next when there is no room."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from dovetail_model import DovetailError, Hints
from dovetail_protocols import Codec

RETRY_AFTER_SECONDS = 2.0  # seconds
QueuePosition = tuple[float, float, float, int]


class AdmissionController:
    """Lets in as many as there is room for. Others wait for a while, the most urgent in front.

    `most` are inside at once, `longest` wait, each for `patience` seconds at most. `refused` is
    called for each that is turned away.
    """

    __slots__ = (
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
    ) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._queue_timeout = queue_timeout
        self._on_rejected = on_rejected
        self._queue: list[tuple[QueuePosition, asyncio.Future[None]]] = []
        self._sequence = count()
        self.running = 0
        self.queued = 0

    @asynccontextmanager
    async def admit(self, codec: Codec, hints: Hints) -> AsyncIterator[None]:
        """Room for one request, for as long as it lasts."""
        if self.running < self._max_running:
            self.running += 1
        else:
            await self._wait(codec, hints)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, codec: Codec, hints: Hints) -> None:
        """Returns when somebody who left has handed over the room."""
        if self.queued >= self._max_queued:
            self._on_rejected()
            raise busy_error(codec)
        if len(self._queue) > 2 * self._max_queued:  # most of them have gone again
            self._queue = [one for one in self._queue if not one[1].done()]
            heapq.heapify(self._queue)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (_queue_position(hints, next(self._sequence)), turn))
        self.queued += 1
        try:
            async with asyncio.timeout(self._queue_timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._release()  # the room came too late
            turn.cancel()
            if isinstance(error, TimeoutError):
                self._on_rejected()
                raise busy_error(codec) from None
            raise
        finally:
            self.queued -= 1

    def _release(self) -> None:
        """The room goes to the next in line who still waits."""
        while self._queue:
            _, turn = heapq.heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1


def _queue_position(hints: Hints, number: int) -> QueuePosition:
    """Smaller is sooner: what must come first, then what is worth more, then who came first."""
    return (
        -(hints.strict_priority or 0),
        -(hints.priority or 0),
        -(hints.latency_sensitivity or 0.0),
        number,
    )


def busy_error(codec: Codec) -> DovetailError:
    """The error of a server without capacity, of the kind that this API's clients retry."""
    error = codec.overload_error(
        "The server is at its limit of concurrent requests.", retry_after=RETRY_AFTER_SECONDS
    )
    error.reason = "busy"
    return error
