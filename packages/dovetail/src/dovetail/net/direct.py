"""Where the frames of a stream leave: the connection itself, or the server that has it.

A message for every token would cost a coroutine, two dicts and half a dozen checks, in a thread
that the model's own thread waits for.
"""

from typing import Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.net.exchange import Exchange

#: Under this name the connection is offered, among the `extensions` of ASGI's scope.
DIRECT_WRITER_EXTENSION = "dovetail.direct"


class ByteSink(Protocol):
    """The body of an answer that has begun."""

    def write(self, data: bytes) -> bool:
        """Takes a part. False: `drain` before the next one."""

    async def drain(self) -> None:
        """Returns when there is room for more."""


class DirectHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which lets the application write to its connection."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["extensions"] = {DIRECT_WRITER_EXTENSION: DirectWriter(self.cycle)}  # type: ignore[dict-item]


class DirectWriter:
    """The connection. What is written when the client has hung up is nobody's."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def write(self, data: bytes) -> bool:
        cycle = self._cycle
        if data and not (cycle.disconnected or cycle.response_complete):
            self._write(b"%x\r\n%b\r\n" % (len(data), data))  # an empty part would be the last
        return not self._flow.write_paused

    @property
    def full(self) -> bool:
        return self._flow.write_paused

    async def drain(self) -> None:
        await self._flow.drain()


class BufferedWriter:
    """For any other server: what has gathered is a message whenever there is room for one."""

    __slots__ = ("_exchange", "_parts")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self._parts.append(data)
        return False

    async def drain(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            await self._exchange.write(data)


def get_byte_sink(exchange: Exchange) -> ByteSink:
    """The shortest way for the body of an answer."""
    direct: ByteSink | None = exchange.extensions.get(DIRECT_WRITER_EXTENSION)
    return BufferedWriter(exchange) if direct is None else direct
