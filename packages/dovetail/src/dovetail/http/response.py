"""An answer as a stream of frames. `hear` is the hot path: it runs for every batch of tokens.

Nothing here switches tasks, unless a client reads slowly: then nothing more is asked of the engine
until the client has caught up.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dovetail.http.errors import status_of, told
from dovetail.http.exchange import Exchange, end_of
from dovetail.http.outlet import Outlet
from dovetail.http.tracker import Account
from dovetail.net.disconnect import DisconnectGuard
from dovetail_model import Event, ReasoningDelta, error_of
from dovetail_protocols import MESSAGES, Codec, StreamEncoder

SSE = "text/event-stream; charset=utf-8"
HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Streaming:
    """Sends one answer.

    An error before the first frame is raised: it can still be a status. A later one is told in
    the stream, which then ends. `ending` gives frames that had to wait for something.
    """

    __slots__ = (
        "_account",
        "_codec",
        "_encode",
        "_encoder",
        "_ending",
        "_exchange",
        "_heard",
        "_outlet",
        "_pause",
        "_timer",
    )

    def __init__(
        self,
        exchange: Exchange,
        account: Account,
        codec: Codec,
        encoder: StreamEncoder,
        keep_alive: float,
        ending: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._account = account
        self._codec = codec
        self._encoder = encoder
        self._pause = keep_alive
        self._ending = ending
        self._timer: asyncio.TimerHandle | None = None
        self._outlet = Outlet(exchange, self._begin)
        self._encode, self._heard = encoder.encode, account.heard

    async def run(self, answer: Awaitable[None], lifeline: DisconnectGuard) -> None:
        """The whole stream. The body ends as soon as the answer does."""
        self._wait(self._pause)
        try:
            await answer
            self._note_failure()
        except Exception as error:
            if not self._outlet.used:
                raise
            self._break_off(error)
        except asyncio.CancelledError:
            self._outlet.drop()
            raise
        finally:
            self._stop_beating()
        if self._ending is not None and (frames := await self._ending()):
            self._outlet.write(frames)
        await self._outlet.room()
        lifeline.release()
        await self._exchange.send(end_of())

    def hear(self, choice: int, events: list[Event]) -> bool:
        """More of the answer."""
        self._heard(choice, events)
        frames = self._encode(events, choice)
        outlet = self._outlet
        return outlet.write(frames) if frames or not outlet.used else True

    async def room(self) -> None:
        """Returns when the client has caught up."""
        await self._outlet.room()

    async def _begin(self) -> None:
        await self._exchange.begin(200, SSE, [*HEADERS, *self._account.headers()])

    def _note_failure(self) -> None:
        """A failure that the pipeline told as an event counts as the status it would have been."""
        failure = self._account.failure
        if failure is not None:
            error = error_of(failure)
            self._account.failed(error, status_of(error, self._codec))

    def _break_off(self, error: Exception) -> None:
        """The pipeline has told its own failures; an encoder that has ended says no more."""
        failure = told(error)
        self._account.failed(failure, status_of(failure, self._codec))
        frames = self._encoder.encode([failure.failure()])
        if frames:
            self._outlet.write(frames)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Has there been silence for so long that the client needs a sign of life?

        One that does not read what there is would not see it.
        """
        left = self._pause - self._account.silence()
        if left <= 0 and self._outlet.used and not self._outlet.full:
            frames = self._sign_of_life()
            if frames:
                self._outlet.write(frames)
        self._wait(left if left > 0 else self._pause)

    def _sign_of_life(self) -> bytes:
        """Claude Code gives up after 300 s in which nothing but pings came.

        Where the prompt has opened a thought, an empty piece of that thought is more than a ping.
        """
        account = self._account
        if account.silent and account.thinks and self._codec is MESSAGES:
            return self._encoder.encode([ReasoningDelta("")])
        return self._encoder.keep_alive()

    def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
