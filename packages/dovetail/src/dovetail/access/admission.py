"""How many requests are worked on at once, and who comes next when there is no room."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from dovetail_model import DovetailError, Hints, Overloaded, RateLimited
from dovetail_protocols import MESSAGES, Codec

RETRY_AFTER = 2.0  # seconds
Place = tuple[float, float, float, int]


class Admission:
    """Lets in as many as there is room for. Others wait for a while, the most urgent in front.

    `most` are inside at once, `longest` wait, each for `patience` seconds at most. `refused` is
    called for each that is turned away.
    """

    __slots__ = (
        "_line",
        "_longest",
        "_most",
        "_number",
        "_patience",
        "_refused",
        "inside",
        "waiting",
    )

    def __init__(
        self,
        most: int,
        longest: int = 0,
        patience: float = 60.0,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._most = most
        self._longest = longest
        self._patience = patience
        self._refused = refused
        self._line: list[tuple[Place, asyncio.Future[None]]] = []
        self._number = count()
        self.inside = 0
        self.waiting = 0

    @asynccontextmanager
    async def enter(self, codec: Codec, hints: Hints) -> AsyncIterator[None]:
        """Room for one request, for as long as it lasts."""
        if self.inside < self._most:
            self.inside += 1
        else:
            await self._wait(codec, hints)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, codec: Codec, hints: Hints) -> None:
        """Returns when somebody who left has handed over the room."""
        if self.waiting >= self._longest:
            self._refused()
            raise busy(codec)
        if len(self._line) > 2 * self._longest:  # most of them have gone again
            self._line = [one for one in self._line if not one[1].done()]
            heapq.heapify(self._line)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (_place(hints, next(self._number)), turn))
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # the room came too late
            turn.cancel()
            if isinstance(error, TimeoutError):
                self._refused()
                raise busy(codec) from None
            raise
        finally:
            self.waiting -= 1

    def _leave(self) -> None:
        """The room goes to the next in line who still waits."""
        while self._line:
            _, turn = heapq.heappop(self._line)
            if not turn.done():
                turn.set_result(None)
                return
        self.inside -= 1


def _place(hints: Hints, number: int) -> Place:
    """Smaller is sooner: what must come first, then what is worth more, then who came first."""
    return (
        -(hints.strict_priority or 0),
        -(hints.priority or 0),
        -(hints.latency_sensitivity or 0.0),
        number,
    )


def busy(codec: Codec) -> DovetailError:
    """That there is no room, in the kind that this API's clients come back after."""
    kind = Overloaded if codec is MESSAGES else RateLimited
    error = kind("The server is at its limit of concurrent requests.", retry_after=RETRY_AFTER)
    error.reason = "busy"
    return error
