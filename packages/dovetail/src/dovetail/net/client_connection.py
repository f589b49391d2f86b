"""One connection to an engine, and the one answer on it.

The loop brings bytes, and whoever is poured to gets them in the same call: between the engine's
socket and what is done with a token no task is switched. Others read at their own pace. A watch
ends the connection when the server has been silent for too long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dovetail.net.incoming import ResponseParser
from dovetail_model import EngineTimeout, EngineUnavailable

MAX_UNREAD_BYTES = 128 << 10  # bytes that wait for a slow reader before no more are taken

#: Takes a part of a body. False: nothing more until there is room again.
PushChunk = Callable[[bytes], bool]
#: Waits for room. False: no more is wanted.
DrainChunks = Callable[[], Awaitable[bool]]


class ClientConnection(asyncio.Protocol):
    """Connected, asked once, and read once: poured out, or by and by."""

    __slots__ = (
        "_response",
        "_error",
        "_full",
        "_loop",
        "_name",
        "_paused",
        "_read_timeout",
        "_last_activity",
        "_push",
        "_transport",
        "_unread",
        "_waiter",
        "_timer",
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
