"""One HTTP exchange over raw ASGI: the body read, the answer sent, the client watched."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail_model import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Body = TypeVar("Body")

JSON_CONTENT_TYPE = b"application/json"
EVENT_STREAM_CONTENT_TYPE = b"text/event-stream; charset=utf-8"


class ClientDisconnected(Exception):
    """The client hung up."""


class Exchange:
    """A request and the way back."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send

    @property
    def extensions(self) -> Mapping[str, Any]:
        """What the server can do beside ASGI's messages."""
        return self._scope.get("extensions") or {}

    def header(self, name: bytes) -> str | None:
        """A header's value, if the client sent one."""
        found = [value for key, value in self._scope["headers"] if key == name and value]
        return found[0].decode("latin-1") if found else None

    async def read_json(self, type_: type[Body]) -> Body:
        """The body, which is JSON of this form."""
        parts, more = [], True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        try:
            return msgspec.json.decode(b"".join(parts), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the body cannot be read: {error}") from error

    async def run_until_disconnect(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer, and give up in the middle if the client hangs up."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._wait_for_disconnect())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [one for one in (task, watch) if one.cancel()]
            await asyncio.gather(*left, return_exceptions=True)
        if not task.cancelled():
            task.result()

    async def start_response(self, status: int, content_type: bytes) -> None:
        headers = [(b"content-type", content_type)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(
        self, data: bytes, content_type: bytes = JSON_CONTENT_TYPE, status: int = 200
    ) -> None:
        """All of an answer at once."""
        headers = [(b"content-type", content_type), (b"content-length", str(len(data)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self.end(data)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


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
