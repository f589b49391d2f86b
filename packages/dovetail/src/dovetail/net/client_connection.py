"""One connection to an engine, with one request at a time.

With `stream_to`, the consumer gets bytes in the same call in which the event loop delivers them, so
there is no task switch between the engine's socket and the handling of a token. Other callers read
at their own pace. A timer aborts the connection if the server sends no data for too long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dovetail.net.response_parser import ResponseParser
from dovetail_model import EngineTimeout, EngineUnavailable

#: Maximum size of one server-sent event. An engine that sends a longer one is faulty.
MAX_EVENT_BYTES = 16 << 20


class SseDataReader:
    """Extract the data of server-sent events from chunks. Names and comments are skipped.

    Raises `EngineUnavailable` for an event of more than `MAX_EVENT_BYTES`.
    """

    __slots__ = ("_data", "_line", "_pending_bytes")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # parts of an incomplete line
        self._data: list[bytes] = []
        self._pending_bytes = 0  # received since the last complete event

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of all events that this chunk completes."""
        if not self._line and not self._data and chunk.startswith(b"data: "):
            events = chunk[6:-2].split(b"\n\ndata: ")
            # Fast path: nearly every chunk contains only complete events of one line each.
            if (
                chunk.endswith(b"\n\n")
                and chunk.count(b"\n") == 2 * len(events)
                and b"\r" not in chunk
            ):
                return events
        return self._split_lines(chunk)

    def _split_lines(self, chunk: bytes) -> list[bytes]:
        self._pending_bytes += len(chunk)
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise EngineUnavailable(
                f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes"
            )
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        if self._line:
            chunk = b"".join([*self._line, chunk])
        *lines, rest = chunk.split(b"\n")
        self._line = [rest] if rest else []
        events: list[bytes] = []
        data = self._data
        if not data:  # comments and empty lines are not kept
            self._pending_bytes = len(rest)
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif data and not line:
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
                self._pending_bytes = len(rest)
        return events


MAX_UNREAD_BYTES = 128 << 10  # buffered for a slow reader before reading pauses

#: Accept a part of a body. False: call `DrainChunks` before the next part.
PushChunk = Callable[[bytes], bool]
#: Wait until the consumer accepts more. False: it needs no further data.
DrainChunks = Callable[[], Awaitable[bool]]


class ClientConnection(asyncio.Protocol):
    """A connection that carries one request at a time; responses are pushed or read in chunks."""

    __slots__ = (
        "_error",
        "_full",
        "_last_activity",
        "_loop",
        "_name",
        "_on_idle_end",
        "_paused",
        "_push",
        "_read_timeout",
        "_response",
        "_skips_rest",
        "_timer",
        "_transport",
        "_unread",
        "_waiter",
    )

    _transport: asyncio.Transport

    def __init__(self, name: str, read_timeout: float) -> None:
        self._name = name
        self._read_timeout = read_timeout
        self._response = ResponseParser()
        self._loop = asyncio.get_running_loop()
        self._on_idle_end: Callable[[ClientConnection], None] | None = None
        self._skips_rest = False
        self._push: PushChunk | None = None  # consumer of the body
        self._full = False  # whether the consumer has to drain first
        self._unread = bytearray()
        self._paused = False  # whether reading from the socket is paused
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._last_activity = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> dict[str, str]:
        return self._response.headers

    def send(self, request: Sequence[bytes]) -> None:
        """Send the request. A server may respond before it has read all of it.

        asyncio's `writelines` keeps an empty part in its buffer as of Python 3.12: it would send
        nothing in a busy loop, and would never report that the server closed the connection.
        """
        for part in request:
            self._transport.write(part)

    async def read_head(self) -> None:
        """Wait for status and headers."""
        while not self._response.head_complete:
            await self._wait_for_data()

    @property
    def has_received(self) -> bool:
        """Whether a part of the response has arrived."""
        return self._response.has_begun

    @property
    def can_be_reused(self) -> bool:
        """Whether the connection can carry another request."""
        return (
            self._response.keeps_alive
            and self._error is None
            and not self._unread
            and not self._paused
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def skip_rest(self) -> None:
        """Discard the rest of the body, so that the connection can be reused after its end."""
        self._unread.clear()
        self._skips_rest = True
        self._resume_reading()

    @property
    def is_finishing(self) -> bool:
        """Whether only data that is skipped may be missing."""
        return self._skips_rest and self._error is None and not self._transport.is_closing()

    def rest(self, seconds: float, on_end: "Callable[[ClientConnection], None]") -> None:
        """Stay open without a request. Calls `on_end` after `seconds`, or if the server closes."""
        self._on_idle_end = on_end
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.abort)

    def resume(self, read_timeout: float) -> None:
        """Begin another request after `rest`."""
        self._on_idle_end = None
        self._response = ResponseParser()
        self._full = self._skips_rest = False
        self._read_timeout = read_timeout
        self._stop_timer()
        self._start_timer()

    async def read(self) -> bytes | None:
        """Return the next part of the body, or None at its end."""
        while not self._unread:
            if self._response.complete:
                return None
            await self._wait_for_data()
        self._resume_reading()
        return self._take_unread()

    async def stream_to(self, push: PushChunk, drain: DrainChunks) -> None:
        """Push the body to `push` until it ends, each part in the call that receives it.

        When `push` returns False, `drain` is awaited; it returns whether to continue.
        """
        self._push = push
        try:
            self._push_body(push, self._take_unread())  # data that arrived with the head
            if not self._full:
                self._resume_reading()  # reading pauses when too much data is unread
            while True:
                if self._full:
                    self._full = False
                    if not await drain():
                        return
                    self._resume_reading()
                elif self._response.complete and self._error is None:
                    return
                else:
                    await self._wait_for_data()
        finally:
            self._push = None

    def abort(self) -> None:
        """Close immediately and discard unsent data."""
        self._stop_timer()
        self._transport.abort()
        self._end_rest()

    def _end_rest(self) -> None:
        if self._on_idle_end is not None:
            on_end, self._on_idle_end = self._on_idle_end, None
            on_end(self)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Handle received data. Runs for every token."""
        if self._on_idle_end is not None:
            self._skip(data)
            return
        self._last_activity = self._loop.time()
        try:
            body = self._response.feed(data)
        except ValueError as error:
            self._fail(EngineUnavailable(f"invalid response from {self._name}: {error}"))
            return
        if self._push is not None:
            if self._error is None:
                self._push_body(self._push, body)
            return
        self._unread += body
        if len(self._unread) > MAX_UNREAD_BYTES:
            self._pause_reading()
        self._wake()

    def _skip(self, data: bytes) -> None:
        """Discard data that arrives while the connection rests."""
        try:
            if not self._response.complete:
                self._response.feed(data)
                return
        except ValueError:
            pass
        self.abort()  # data without a request, or an invalid end

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._end_rest()
        if self._response.complete:
            return
        if exc is not None:
            self._fail(EngineUnavailable(f"lost the connection to {self._name}"))
            return
        try:
            self._response.close()
        except ValueError as error:
            self._fail(EngineUnavailable(f"incomplete response from {self._name}: {error}"))
        self._wake()

    def _take_unread(self) -> bytes:
        unread = bytes(self._unread)
        self._unread.clear()
        return unread

    def _push_body(self, push: PushChunk, body: bytes) -> None:
        try:
            has_room = not body or push(body)
        except Exception as error:  # `stream_to` raises it
            self._fail(error)
            return
        if not has_room:
            self._full = True
            self._pause_reading()
            self._wake()
        elif self._response.complete:
            self._wake()

    async def _wait_for_data(self) -> None:
        """Wait for data, the end of the response, or an error, which is raised."""
        if self._error is not None:
            raise self._error
        self._last_activity = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        """Record the first error; later errors are consequences of it."""
        self._error = self._error or error
        self._wake()

    def _check_timeout(self) -> None:
        """Abort the connection if the read timeout has passed, else schedule the next check.

        The connection has a single timer because one timer per read would cost more than the read.
        Time during which no caller waits for data does not count.
        """
        now = self._loop.time()
        last_activity = now if self._waiter is None else self._last_activity
        if now < last_activity + self._read_timeout:
            self._timer = self._loop.call_at(
                last_activity + self._read_timeout, self._check_timeout
            )
            return
        self._timer = None
        self._fail(EngineTimeout(f"{self._name} sent no data for {self._read_timeout:g} s"))
        self._transport.abort()

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._read_timeout, self._check_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause_reading(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
