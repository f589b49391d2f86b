"""Where the frames of a stream leave.

Our own server lets us write to its connection at once (`Direct`). Any other server is sent messages
as ASGI has it, by a task that sends what has gathered.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dovetail.http.exchange import Exchange
from dovetail.net.direct import DIRECT_WRITER_EXTENSION, DirectWriter


class Outlet:
    """The body of one answer. What comes first begins it, by `begin`."""

    __slots__ = ("_begin", "_direct", "_exchange", "_gathered", "_sending", "used", "write")

    def __init__(self, exchange: Exchange, begin: Callable[[], Awaitable[None]]) -> None:
        self._exchange = exchange
        self._begin = begin
        self._direct: DirectWriter | None = None
        self._gathered: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self.used = False
        #: Sends frames. False: there is no room for more at the moment.
        self.write: Callable[[bytes], bool] = self._gather

    def _gather(self, frames: bytes) -> bool:
        self.used = True
        self._gathered.append(frames)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
            self._sending.add_done_callback(_seen)
        return False

    @property
    def full(self) -> bool:
        """Whether there is no room for more at the moment."""
        return self._sending is not None or (self._direct is not None and self._direct.full)

    async def room(self) -> None:
        """Returns when there is room."""
        if self._sending is not None:
            await asyncio.shield(self._sending)  # others may wait for it, too
        elif self._direct is not None:
            await self._direct.drain()

    def drop(self) -> None:
        """What was not sent yet is not wanted any more."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        """Begins the answer, if that was not done, and sends what has gathered."""
        exchange = self._exchange
        if exchange.status is None:
            await self._begin()
        while self._gathered:
            body = b"".join(self._gathered)
            self._gathered.clear()
            await exchange.send({"type": "http.response.body", "body": body, "more_body": True})
        self._sending = None
        self._direct = exchange.extensions.get(DIRECT_WRITER_EXTENSION)
        if self._direct is not None:
            self.write = self._direct.write


def _seen(sending: "asyncio.Task[None]") -> None:
    """A fault is told to whoever waits for room; where nobody does, the client is gone."""
    if not sending.cancelled():
        sending.exception()
