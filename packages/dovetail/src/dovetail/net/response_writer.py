"""Write response bodies, directly to the connection if the server supports it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.net.exchange import Exchange

#: Key under which the `extensions` of an ASGI scope offer a `BodyWriter` for the connection.
DIRECT_WRITER_EXTENSION = "dovetail.direct"


class BodyWriter(Protocol):
    """Writer for the body of a response that has started."""

    def write(self, data: bytes) -> bool:
        """Write a part. Returns False if `drain` must be awaited before the next one."""

    @property
    def full(self) -> bool:
        """Whether `drain` must be awaited before the next write."""

    async def drain(self) -> None:
        """Wait until the writer accepts more data."""


class DirectHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with a direct writer for the application."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT_WRITER_EXTENSION: DirectWriter(self.cycle)}  # type: ignore[dict-item]


class DirectWriter:
    """Write HTTP chunks to the connection. Data written after a disconnect is dropped."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def write(self, data: bytes) -> bool:
        cycle = self._cycle
        if data and not (cycle.disconnected or cycle.response_complete):
            self._write(b"%x\r\n%b\r\n" % (len(data), data))  # an empty chunk would end the body
        return not self._flow.write_paused

    @property
    def full(self) -> bool:
        return self._flow.write_paused

    async def drain(self) -> None:
        await self._flow.drain()


class ResponseWriter:
    """Write the body of one response: directly if the server supports it, else by ASGI messages.

    With `start_response`, the first write starts the response in a separate task; without it, the
    response has started already. Data is buffered until the response has started, and on servers
    without a direct writer also afterwards: the buffer is sent as one message whenever the server
    accepts one.

    started: Whether the response has started or is about to start, so its status is fixed.
    """

    __slots__ = (
        "_buffer",
        "_direct",
        "_exchange",
        "_send_task",
        "_start_response",
        "started",
        "write",
    )

    def __init__(
        self, exchange: Exchange, start_response: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._exchange = exchange
        self._start_response = start_response
        self._direct: BodyWriter | None = exchange.extensions.get(DIRECT_WRITER_EXTENSION)
        self._buffer: list[bytes] = []
        self._send_task: asyncio.Task[None] | None = None
        self.started = start_response is None
        #: Write a part. Returns False if `drain` must be awaited before the next one. This is an
        #: attribute so that the direct writer can replace it, which saves a call per token.
        self.write: Callable[[bytes], bool] = self._write_buffered
        if self.started and self._direct is not None:
            self.write = self._direct.write

    @property
    def full(self) -> bool:
        """Whether `drain` must be awaited before the next write."""
        return self._send_task is not None or (self._direct is not None and self._direct.full)

    async def drain(self) -> None:
        """Wait until the writer accepts more data."""
        if self._send_task is not None:
            await asyncio.shield(self._send_task)  # other callers may wait for it, too
        elif self._direct is not None:
            await self._direct.drain()

    def discard(self) -> None:
        """Drop unsent data."""
        if self._send_task is not None:
            self._send_task.cancel()

    def _write_buffered(self, data: bytes) -> bool:
        self.started = True
        self._buffer.append(data)
        if self._send_task is None:
            self._send_task = asyncio.create_task(self._send_buffer())
            self._send_task.add_done_callback(_consume_exception)
        return False

    async def _send_buffer(self) -> None:
        """Start the response if necessary, and send the buffered data."""
        exchange = self._exchange
        start_response, self._start_response = self._start_response, None
        if exchange.status is None and start_response is not None:
            await start_response()
        while self._buffer:
            body = b"".join(self._buffer)
            self._buffer.clear()
            await exchange.send({"type": "http.response.body", "body": body, "more_body": True})
        self._send_task = None
        if self._direct is not None:
            self.write = self._direct.write


def _consume_exception(task: "asyncio.Task[None]") -> None:
    """Mark an exception as retrieved: `drain` raises it, and otherwise the client is gone."""
    if not task.cancelled():
        task.exception()
