"""An answer as a stream of frames. `_forward` is the hot path: it runs for every batch of tokens.

Nothing here switches tasks but the waiting for the engine and, where a client reads slowly, for the
client: then nothing more is asked of the engine until the client has caught up.
"""

import asyncio
from contextlib import aclosing

from dovetail.http.account import Account
from dovetail.http.asgi import Message
from dovetail.http.errors import status_of, told
from dovetail.http.exchange import Exchange, end_of
from dovetail.http.lifeline import Lifeline
from dovetail.pipeline import Answer
from dovetail_model import ReasoningDelta, error_of
from dovetail_protocols import MESSAGES, Codec, StreamEncoder

SSE = "text/event-stream; charset=utf-8"
_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Streaming:
    """Sends one answer.

    An error before the first frame is raised: it can still be a status. A later one is told in
    the stream, which then ends.
    """

    __slots__ = (
        "_account",
        "_beat",
        "_begun",
        "_codec",
        "_encoder",
        "_exchange",
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
    ) -> None:
        self._exchange = exchange
        self._account = account
        self._codec = codec
        self._encoder = encoder
        self._pause = keep_alive
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    async def run(self, answer: Answer, lifeline: Lifeline) -> None:
        """The whole stream. The body ends as soon as the answer does."""
        try:
            async with aclosing(answer):
                await self._forward(answer)
            self._note_failure()
        except Exception as error:
            if not self._begun:
                raise
            await self._break_off(error)
        finally:
            self._stop_beating()
        lifeline.release()
        await self._exchange.send(end_of())

    async def _forward(self, answer: Answer) -> None:
        encode, send, heard = self._encoder.encode, self._exchange.send, self._account.heard
        async for choice, events in answer:
            if not self._begun:
                await self._begin()
            heard(choice, events)
            frames = encode(events, choice)
            if frames:
                await send({"type": "http.response.body", "body": frames, "more_body": True})

    async def _begin(self) -> None:
        self._begun = True
        await self._exchange.begin(200, SSE, [*_HEADERS, *self._account.headers()])
        self._wait(self._pause)

    def _note_failure(self) -> None:
        """A failure that the pipeline told as an event counts as the status it would have been."""
        failure = self._account.failure
        if failure is not None:
            error = error_of(failure)
            self._account.failed(error, status_of(error, self._codec))

    async def _break_off(self, error: Exception) -> None:
        """The pipeline has told its own failures; an encoder that has ended says no more."""
        failure = told(error)
        self._account.failed(failure, status_of(failure, self._codec))
        frames = self._encoder.encode([failure.failure()])
        if frames:
            await self._exchange.send(_more(frames))

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Has there been silence for so long that the client needs a sign of life?"""
        left = self._pause - self._account.silence()
        if left > 0:
            self._wait(left)
        else:
            self._beat = asyncio.create_task(self._show_life())

    async def _show_life(self) -> None:
        frames = self._sign_of_life()
        if frames:
            await self._exchange.send(_more(frames))
        self._wait(self._pause)

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
        if self._beat is not None:
            self._beat.cancel()


def _more(frames: bytes) -> Message:
    return {"type": "http.response.body", "body": frames, "more_body": True}
