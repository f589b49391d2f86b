"""One connection to an engine, and the one answer on it.

The loop brings bytes, and whoever is poured to gets them in the same call: between the engine's
socket and what is done with a token no task is switched. Others read at their own pace. A watch
ends the connection when the server has been silent for too long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import httptools

from dovetail_model import EngineTimeout, EngineUnavailable

#: Bytes of status line and headers that are read before the answer is called nonsense.
MAX_HEAD_BYTES = 1 << 18


class ResponseParser:
    """One answer. `begun` once its head has come, `complete` once its body has ended."""

    __slots__ = (
        "_head_bytes",
        "_parser",
        "_parts",
        "complete",
        "head_complete",
        "headers",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self.head_complete = False
        self.complete = False
        self.headers: dict[str, str] = {}
        self.status = 0

    def feed(self, data: bytes) -> bytes:
        """Takes what was read, and gives the part of the body that is in it.

        Raises `ValueError` with what is wrong with it.
        """
        if not self.head_complete:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            if not self.complete:  # what comes behind an answer is nobody's
                raise ValueError(str(fault)) from fault
        if not self.head_complete and self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("its head does not end")
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def close(self) -> None:
        """The connection has ended. Raises `ValueError` if the answer has not."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if not self.head_complete or (framed and not self.complete):
            raise ValueError("the connection was closed in the middle")
        self.complete = True

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_complete:  # trailers are not wanted
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return  # a second answer, that nobody asked for
        self.status = self._parser.get_status_code()
        if self.status < 200:  # "continue": the answer comes behind it
            self.headers.clear()
        else:
            self.head_complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self.complete = self.head_complete


class SseDataReader:
    """The data of server-sent events, in any pieces. Names and comments are passed over."""

    __slots__ = ("_data", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # a line that has not ended, in pieces
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of all events that this piece completes."""
        if not self._line and not self._data and piece.startswith(b"data: "):
            whole = piece[6:-2].split(b"\n\ndata: ")
            # Nothing but whole events of one line each: what nearly every piece is.
            if (
                piece.endswith(b"\n\n")
                and piece.count(b"\n") == 2 * len(whole)
                and b"\r" not in piece
            ):
                return whole
        return self._split_lines(piece)

    def _split_lines(self, piece: bytes) -> list[bytes]:
        if b"\n" not in piece:
            self._line.append(piece)
            return []
        if self._line:
            piece = b"".join([*self._line, piece])
        *lines, rest = piece.split(b"\n")
        self._line = [rest] if rest else []
        found: list[bytes] = []
        data = self._data
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif data and not line:
                found.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        return found


MAX_UNREAD_BYTES = 128 << 10  # bytes that wait for a slow reader before no more are taken

#: Takes a part of a body. False: nothing more until there is room again.
PushChunk = Callable[[bytes], bool]
#: Waits for room. False: no more is wanted.
DrainChunks = Callable[[], Awaitable[bool]]


class ClientConnection(asyncio.Protocol):
    """Connected, asked once, and read once: poured out, or by and by."""

    __slots__ = (
        "_error",
        "_full",
        "_last_activity",
        "_loop",
        "_name",
        "_paused",
        "_push",
        "_read_timeout",
        "_response",
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
        self._push: PushChunk | None = None  # who the body is poured to
        self._full = False  # whether they have no room
        self._unread = bytearray()
        self._paused = False  # whether nothing is read from the socket
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
        """Sends what is asked. A server may refuse before it has read everything."""
        self._transport.writelines(request)

    async def read_head(self) -> None:
        """Returns once status and headers are there."""
        while not self._response.head_complete:
            await self._wait_for_data()

    async def read(self) -> bytes | None:
        """More of the body; None at its end."""
        while not self._unread:
            if self._response.complete:
                return None
            await self._wait_for_data()
        self._resume_reading()
        return self._take_unread()

    async def stream_to(self, push: PushChunk, drain: DrainChunks) -> None:
        """The body to `take`, up to its end, each part in the call that brings it.

        Where `take` returns False, `wait` says whether there is to be more.
        """
        self._push = push
        try:
            self._push_body(push, self._take_unread())  # what came with the head
            if not self._full:
                self._resume_reading()  # so much may have come that no more was taken
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
        """Closes at once: what was not sent yet is not wanted any more."""
        self._stop_timer()
        self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._timer = self._loop.call_later(self._read_timeout, self._check_timeout)

    def data_received(self, data: bytes) -> None:
        """Runs for every token."""
        self._last_activity = self._loop.time()
        try:
            body = self._response.feed(data)
        except ValueError as fault:
            self._fail(EngineUnavailable(f"{self._name} broke off its answer ({fault})"))
            return
        if self._push is not None:
            if self._error is None:
                self._push_body(self._push, body)
            return
        self._unread += body
        if len(self._unread) > MAX_UNREAD_BYTES:
            self._pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._response.complete:
            return
        if exc is not None:
            self._fail(EngineUnavailable(f"the connection to {self._name} broke"))
            return
        try:
            self._response.close()
        except ValueError as fault:
            self._fail(EngineUnavailable(f"{self._name} broke off its answer ({fault})"))
        self._wake()

    def _take_unread(self) -> bytes:
        unread = bytes(self._unread)
        self._unread.clear()
        return unread

    def _push_body(self, push: PushChunk, body: bytes) -> None:
        try:
            more = not body or push(body)
        except Exception as error:  # it is the one who pours that has to know
            self._fail(error)
            return
        if not more:
            self._full = True
            self._pause_reading()
            self._wake()
        elif self._response.complete:
            self._wake()

    async def _wait_for_data(self) -> None:
        """Returns when something has happened. Raises what is wrong with the line."""
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
        """The first thing that goes wrong is told; the rest follows from it."""
        self._error = self._error or error
        self._wake()

    def _check_timeout(self) -> None:
        """One timer for the whole line: setting one for every read would cost more than reading.

        While nobody waits for the server, the silence is not its own.
        """
        now = self._loop.time()
        until = now if self._waiter is None else self._last_activity
        if now < until + self._read_timeout:
            self._timer = self._loop.call_at(until + self._read_timeout, self._check_timeout)
            return
        self._timer = None
        self._fail(EngineTimeout(f"{self._name} was silent for {self._read_timeout:g} s"))
        self._transport.abort()

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
