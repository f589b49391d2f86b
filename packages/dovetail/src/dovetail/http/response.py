"""Streaming and buffered responses. `StreamingResponse.write` runs for every batch of tokens.

Writing does not switch tasks. Only when a client reads slowly does `drain` wait, which applies
backpressure to the engine until the client has caught up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from dovetail.http.errors import error_status, to_client_error
from dovetail.http.exchange import ApiExchange
from dovetail.http.ids import ResponseIds
from dovetail.http.tracker import RequestTracker
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, DisconnectGuard
from dovetail.net.response_writer import ResponseWriter
from dovetail_model import Event, Fold, Request, error_from_failure
from dovetail_protocols import Codec, StreamEncoder

STREAM_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class StreamingResponse:
    """Stream one response.

    An error before the first frame is raised, so that it can still determine the status. A later
    error is sent in the stream, which then ends. `final_frames` returns frames that had to wait
    until the response was stored.
    """

    __slots__ = (
        "_codec",
        "_diagnostics",
        "_encode",
        "_encoder",
        "_exchange",
        "_final_frames",
        "_headers_sent",
        "_keep_alive_seconds",
        "_timer",
        "_track_events",
        "_tracker",
        "_writer",
    )

    def __init__(
        self,
        exchange: ApiExchange,
        tracker: RequestTracker,
        codec: Codec,
        encoder: StreamEncoder,
        keep_alive: float,
        final_frames: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._tracker = tracker
        self._codec = codec
        self._encoder = encoder
        self._keep_alive_seconds = keep_alive
        self._final_frames = final_frames
        self._timer: asyncio.TimerHandle | None = None
        self._writer = ResponseWriter(exchange, self._start_response)
        self._encode, self._track_events = encoder.encode, tracker.on_events
        self._diagnostics = tracker.diagnostics
        self._headers_sent = False

    async def run(self, generation: Awaitable[None], guard: DisconnectGuard) -> None:
        """Run the generation and send its output. The body ends when the generation ends."""
        self._schedule_keep_alive(self._keep_alive_seconds)
        try:
            await generation
            self._track_failure()
        except Exception as error:
            if not self._writer.started:
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
        await self._exchange.end()

    def write(self, choice: int, events: list[Event]) -> bool:
        """Encode and send events of a choice. Returns False if `drain` must be awaited."""
        self._track_events(choice, events)
        frames = self._encode(events, choice)
        writer = self._writer
        if self._diagnostics.unreported and self._headers_sent:
            frames = self._diagnostics.comment() + frames
        return writer.write(frames) if frames or not writer.started else True

    async def drain(self) -> None:
        """Wait until the client has caught up."""
        await self._writer.drain()

    async def _start_response(self) -> None:
        headers = [*STREAM_HEADERS, *self._tracker.debug_headers()]
        self._headers_sent = True
        await self._exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, headers)

    def _track_failure(self) -> None:
        """Record a failure that was emitted as an event, with the status of the same error."""
        failure = self._tracker.failure
        if failure is not None:
            error = error_from_failure(failure)
            self._tracker.on_error(error, error_status(error, self._codec))

    def _send_failure(self, error: Exception) -> None:
        """Send a failure that the pipeline has not emitted. An ended encoder ignores it."""
        failure = to_client_error(error)
        self._tracker.on_error(failure, error_status(failure, self._codec))
        frames = self._encoder.encode([failure.to_failure()])
        if frames:
            self._writer.write(frames)

    def _schedule_keep_alive(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        """Send a keep-alive if there was no output for too long.

        It is omitted if the client has not read the previous output, which would come first.
        """
        seconds_left = self._keep_alive_seconds - self._tracker.idle_seconds()
        if seconds_left <= 0 and self._writer.started and not self._writer.full:
            tracker = self._tracker
            in_reasoning = tracker.awaits_first_token and tracker.starts_in_reasoning
            frames = self._encoder.keep_alive(in_reasoning=in_reasoning)
            if frames:
                self._writer.write(frames)
        self._schedule_keep_alive(seconds_left if seconds_left > 0 else self._keep_alive_seconds)

    def _stop_keep_alive(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BufferedResponse:
    """Collect the output of a response that is not streamed."""

    __slots__ = ("_codec", "_folds", "_request", "_tracker")

    def __init__(self, request: Request, codec: Codec, tracker: RequestTracker) -> None:
        self._request = request
        self._codec = codec
        self._tracker = tracker
        self._folds = [Fold() for _ in range(max(1, request.sampling.n))]

    def write(self, choice: int, events: list[Event]) -> bool:
        self._tracker.on_events(choice, events)
        add = self._folds[choice].add
        for event in events:
            add(event)
        return True

    async def drain(self) -> None:
        """Return immediately: the buffer is not limited."""

    def encode_body(self) -> bytes:
        """Encode the body. Raises the error of a failed response instead of truncating it."""
        messages = [fold.message() for fold in self._folds]
        for message in messages:
            if message.failure is not None:
                raise error_from_failure(message.failure)
        ids = ResponseIds(self._request.identity.response_number)
        return self._codec.encode_message(self._request, messages, ids, time.time)
