"""Where the frames of a stream leave.

Our own server lets us write to its connection at once (`Direct`). Any other server is sent messages
as ASGI has it, by a task that sends what has gathered.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dovetail.http.exchange import ApiExchange
from dovetail.net.exchange import DIRECT_WRITER_EXTENSION, DirectWriter


class ResponseBodyWriter:
    """The body of one answer. What comes first begins it, by `begin`."""

    __slots__ = (
        "_start_response",
        "_direct",
        "_exchange",
        "_buffer",
        "_send_task",
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
