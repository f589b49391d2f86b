"""One connection to an engine, and the one answer on it.

The loop brings bytes, and whoever is poured to gets them in the same call: between the engine's
socket and what is done with a token no task is switched. Others read at their own pace. A watch
ends the connection when the server has been silent for too long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dovetail.net.incoming import Incoming
from dovetail_model import EngineTimeout, EngineUnavailable

ENOUGH_UNREAD = 128 << 10  # bytes that wait for a slow reader before no more are taken

#: Takes a part of a body. False: nothing more until there is room again.
Take = Callable[[bytes], bool]
#: Waits for room. False: no more is wanted.
Wait = Callable[[], Awaitable[bool]]


class Line(asyncio.Protocol):
    """Connected, asked once, and read once: poured out, or by and by."""

    __slots__ = (
        "_answer",
        "_fault",
        "_full",
        "_loop",
        "_name",
        "_paused",
        "_silence",
        "_since",
        "_take",
        "_transport",
        "_unread",
        "_waiter",
        "_watch",
    )

    _transport: asyncio.Transport

    def __init__(self, name: str, silence: float) -> None:
        self._name = name
        self._silence = silence
        self._answer = Incoming()
        self._loop = asyncio.get_running_loop()
        self._take: Take | None = None  # who the body is poured to
        self._full = False  # whether they have no room
        self._unread = bytearray()
        self._paused = False  # whether nothing is read from the socket
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._since = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        return self._answer.headers

    def ask(self, request: Sequence[bytes]) -> None:
        """Sends what is asked. A server may refuse before it has read everything."""
        self._transport.writelines(request)

    async def head(self) -> None:
        """Returns once status and headers are there."""
        while not self._answer.begun:
            await self._more()

    async def body(self) -> bytes | None:
        """More of the body; None at its end."""
        while not self._unread:
            if self._answer.complete:
                return None
            await self._more()
        self._read_on()
        return self._take_unread()

    async def pour(self, take: Take, wait: Wait) -> None:
        """The body to `take`, up to its end, each part in the call that brings it.

        Where `take` returns False, `wait` says whether there is to be more.
        """
        self._take = take
        try:
            self._pass_on(take, self._take_unread())  # what came with the head
            if not self._full:
                self._read_on()  # so much may have come that no more was taken
            while True:
                if self._full:
                    self._full = False
                    if not await wait():
                        return
                    self._read_on()
                elif self._answer.complete and self._fault is None:
                    return
                else:
                    await self._more()
        finally:
            self._take = None

    def drop(self) -> None:
        """Closes at once: what was not sent yet is not wanted any more."""
        self._stop_watch()
        self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._watch = self._loop.call_later(self._silence, self._look)

    def data_received(self, data: bytes) -> None:
        """Runs for every token."""
        self._since = self._loop.time()
        try:
            body = self._answer.feed(data)
        except ValueError as fault:
            self._fail(EngineUnavailable(f"{self._name} broke off its answer ({fault})"))
            return
        if self._take is not None:
            if self._fault is None:
                self._pass_on(self._take, body)
            return
        self._unread += body
        if len(self._unread) > ENOUGH_UNREAD:
            self._read_no_more()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        if self._answer.complete:
            return
        if exc is not None:
            self._fail(EngineUnavailable(f"the connection to {self._name} broke"))
            return
        try:
            self._answer.close()
        except ValueError as fault:
            self._fail(EngineUnavailable(f"{self._name} broke off its answer ({fault})"))
        self._wake()

    def _take_unread(self) -> bytes:
        unread = bytes(self._unread)
        self._unread.clear()
        return unread

    def _pass_on(self, take: Take, body: bytes) -> None:
        try:
            more = not body or take(body)
        except Exception as error:  # it is the one who pours that has to know
            self._fail(error)
            return
        if not more:
            self._full = True
            self._read_no_more()
            self._wake()
        elif self._answer.complete:
            self._wake()

    async def _more(self) -> None:
        """Returns when something has happened. Raises what is wrong with the line."""
        if self._fault is not None:
            raise self._fault
        self._since = self._loop.time()
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
        self._fault = self._fault or error
        self._wake()

    def _look(self) -> None:
        """One timer for the whole line: setting one for every read would cost more than reading.

        While nobody waits for the server, the silence is not its own.
        """
        now = self._loop.time()
        until = now if self._waiter is None else self._since
        if now < until + self._silence:
            self._watch = self._loop.call_at(until + self._silence, self._look)
            return
        self._watch = None
        self._fail(EngineTimeout(f"{self._name} was silent for {self._silence:g} s"))
        self._transport.abort()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _read_no_more(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
