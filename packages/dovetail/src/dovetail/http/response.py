"""An answer as a stream of frames. `hear` is the hot path: it runs for every batch of tokens.

Nothing here switches tasks, unless a client reads slowly: then nothing more is asked of the engine
until the client has caught up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from dovetail.http.errors import error_status, to_client_error
from dovetail.http.exchange import ApiExchange, final_body_message
from dovetail.http.ids import ResponseIds
from dovetail.http.tracker import RequestTracker
from dovetail.net.disconnect import DisconnectGuard
from dovetail.net.exchange import DIRECT_WRITER_EXTENSION, DirectWriter
from dovetail_model import Event, Fold, ReasoningDelta, Request, error_from_failure
from dovetail_protocols import MESSAGES, Codec, StreamEncoder


class ResponseBodyWriter:
    """The body of one answer. What comes first begins it, by `begin`."""

    __slots__ = (
        "_buffer",
        "_direct",
        "_exchange",
        "_send_task",
        "_start_response",
        "has_output",
        "write",
    )

    def __init__(
        self, exchange: ApiExchange, start_response: Callable[[], Awaitable[None]]
    ) -> None:
        self._exchange = exchange
        self._start_response = start_response
        self._direct: DirectWriter | None = None
        self._buffer: list[bytes] = []
        self._send_task: asyncio.Task[None] | None = None
        self.has_output = False
        #: Sends frames. False: there is no room for more at the moment.
        self.write: Callable[[bytes], bool] = self._write_buffered

    def _write_buffered(self, frames: bytes) -> bool:
        self.has_output = True
        self._buffer.append(frames)
        if self._send_task is None:
            self._send_task = asyncio.create_task(self._send_buffer())
            self._send_task.add_done_callback(_consume_exception)
        return False

    @property
    def full(self) -> bool:
        """Whether there is no room for more at the moment."""
        return self._send_task is not None or (self._direct is not None and self._direct.full)

    async def drain(self) -> None:
        """Returns when there is room."""
        if self._send_task is not None:
            await asyncio.shield(self._send_task)  # others may wait for it, too
        elif self._direct is not None:
            await self._direct.drain()

    def discard(self) -> None:
        """What was not sent yet is not wanted any more."""
        if self._send_task is not None:
            self._send_task.cancel()

    async def _send_buffer(self) -> None:
        """Begins the answer, if that was not done, and sends what has gathered."""
        exchange = self._exchange
        if exchange.status is None:
            await self._start_response()
        while self._buffer:
            body = b"".join(self._buffer)
            self._buffer.clear()
            await exchange.send({"type": "http.response.body", "body": body, "more_body": True})
        self._send_task = None
        self._direct = exchange.extensions.get(DIRECT_WRITER_EXTENSION)
        if self._direct is not None:
            self.write = self._direct.write


def _consume_exception(sending: "asyncio.Task[None]") -> None:
    """A fault is told to whoever waits for room; where nobody does, the client is gone."""
    if not sending.cancelled():
        sending.exception()


EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"
STREAM_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class StreamingResponse:
    """Sends one answer.

    An error before the first frame is raised: it can still be a status. A later one is told in
    the stream, which then ends. `ending` gives frames that had to wait for something.
    """

    __slots__ = (
        "_codec",
        "_encode",
        "_encoder",
        "_exchange",
        "_final_frames",
        "_keep_alive_seconds",
        "_timer",
        "_track_events",
        "_tracker",
        "_writer",
    )

    def __init__(
        self,
        exchange: ApiExchange,
        account: RequestTracker,
        codec: Codec,
        encoder: StreamEncoder,
        keep_alive: float,
        final_frames: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._tracker = account
        self._codec = codec
        self._encoder = encoder
        self._keep_alive_seconds = keep_alive
        self._final_frames = final_frames
        self._timer: asyncio.TimerHandle | None = None
        self._writer = ResponseBodyWriter(exchange, self._start_response)
        self._encode, self._track_events = encoder.encode, account.on_events

    async def run(self, generation: Awaitable[None], guard: DisconnectGuard) -> None:
        """The whole stream. The body ends as soon as the answer does."""
        self._schedule_keep_alive(self._keep_alive_seconds)
        try:
            await generation
            self._track_failure()
        except Exception as error:
            if not self._writer.has_output:
                raise
            self._send_failure(error)
        except asyncio.CancelledError:
            self._writer.discard()
            raise
        finally:
            self._stop_keep_alive()
        if self._final_frames is not None and (frames := await self._final_frames()):
            self._writer.write(frames)
        await self._writer.drain()
        guard.release()
        await self._exchange.send(final_body_message())

    def write(self, choice: int, events: list[Event]) -> bool:
        """More of the answer."""
        self._track_events(choice, events)
        frames = self._encode(events, choice)
        outlet = self._writer
        return outlet.write(frames) if frames or not outlet.has_output else True

    async def drain(self) -> None:
        """Returns when the client has caught up."""
        await self._writer.drain()

    async def _start_response(self) -> None:
        await self._exchange.start(
            200, EVENT_STREAM_TYPE, [*STREAM_HEADERS, *self._tracker.debug_headers()]
        )

    def _track_failure(self) -> None:
        """A failure that the pipeline told as an event counts as the status it would have been."""
        failure = self._tracker.failure
        if failure is not None:
            error = error_from_failure(failure)
            self._tracker.on_error(error, error_status(error, self._codec))

    def _send_failure(self, error: Exception) -> None:
        """The pipeline has told its own failures; an encoder that has ended says no more."""
        failure = to_client_error(error)
        self._tracker.on_error(failure, error_status(failure, self._codec))
        frames = self._encoder.encode([failure.to_failure()])
        if frames:
            self._writer.write(frames)

    def _schedule_keep_alive(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        """Has there been silence for so long that the client needs a sign of life?

        One that does not read what there is would not see it.
        """
        left = self._keep_alive_seconds - self._tracker.idle_seconds()
        if left <= 0 and self._writer.has_output and not self._writer.full:
            frames = self._keep_alive_frames()
            if frames:
                self._writer.write(frames)
        self._schedule_keep_alive(left if left > 0 else self._keep_alive_seconds)

    def _keep_alive_frames(self) -> bytes:
        """Claude Code gives up after 300 s in which nothing but pings came.

        Where the prompt has opened a thought, an empty piece of that thought is more than a ping.
        """
        account = self._tracker
        if account.awaits_first_token and account.starts_in_reasoning and self._codec is MESSAGES:
            return self._encoder.encode([ReasoningDelta("")])
        return self._encoder.keep_alive()

    def _stop_keep_alive(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class BufferedResponse:
    """Folds an answer while it comes."""

    __slots__ = ("_codec", "_folds", "_request", "_tracker")

    def __init__(self, request: Request, codec: Codec, account: RequestTracker) -> None:
        self._request = request
        self._codec = codec
        self._tracker = account
        self._folds = [Fold() for _ in range(max(1, request.sampling.n))]

    def write(self, choice: int, events: list[Event]) -> bool:
        self._tracker.on_events(choice, events)
        add = self._folds[choice].add
        for event in events:
            add(event)
        return True

    async def drain(self) -> None:
        """There always is."""

    def encode_body(self) -> bytes:
        """The body. An answer that broke is an error, never a short answer."""
        messages = [fold.message() for fold in self._folds]
        for message in messages:
            if message.failure is not None:
                raise error_from_failure(message.failure)
        ids = ResponseIds(self._request.identity.response_number)
        return self._codec.encode_message(self._request, messages, ids, time.time)
