"""HTTP/1.1 client for checks: sequential requests on one connection, with streamed bodies.

Checks need details that HTTP libraries hide: keep-alive, HEAD, upgrades, early responses and the
arrival time of every chunk.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import h11

CONNECT_TIMEOUT_SECONDS = 10.0


class TargetUnreachable(Exception):
    """The server sent no response or an invalid one, so a check has no result."""


class TargetTimeout(TargetUnreachable):
    """The server sent no data for longer than the timeout."""


@dataclass(frozen=True)
class Endpoint:
    """Address of a server: TCP, TLS or a unix socket."""

    host: str = "127.0.0.1"
    port: int = 80
    socket: str | None = None
    tls: bool = False
    base: str = ""

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse `http://host:8000/base` or `unix:///a/b.sock`."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(socket=parts.path)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL must start with http://, https:// or unix://, got {url!r}")
        if parts.username or parts.query or parts.fragment:
            raise ValueError(
                f"the URL of {parts.hostname!r} must not have credentials, a query or a fragment"
            )
        tls = parts.scheme == "https"
        port = parts.port if parts.port is not None else 443 if tls else 80
        return cls(parts.hostname, port, None, tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        if self.socket is not None:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix://{self.socket}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"


class _ReceiveQueue(asyncio.Protocol):
    """Queue of the received data, then b"" or the error that closed the connection.

    The streams of asyncio raise an error before they return the data that precede it, so a response
    that is followed by a reset would be lost.
    """

    def __init__(self) -> None:
        self._items: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def get(self) -> bytes | Exception:
        return await self._items.get()

    def data_received(self, data: bytes) -> None:
        self._items.put_nowait(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._items.put_nowait(exc or b"")


class HttpConnection:
    """A connection. `request` returns a complete response, `stream` one with an unread body."""

    __slots__ = ("_endpoint", "_http", "_received", "_timeout", "_transport")

    def __init__(
        self,
        endpoint: Endpoint,
        transport: asyncio.WriteTransport,
        received: _ReceiveQueue,
        timeout_seconds: float,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._received = received
        self._timeout = timeout_seconds
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body. A 101 response has no body."""
        response = await self.stream(method, path, headers, body)
        chunks = [] if response.status == 101 else [one async for one in response.iter_chunks()]
        return response.status, response.headers, b"".join(chunks)

    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> "StreamedResponse":
        """Return the response as soon as its status and headers have arrived."""
        self._send(method, path, headers, body)
        status, found = await self._read_head()
        return StreamedResponse(self, status, found)

    @property
    def is_reusable(self) -> bool:
        """Whether the server left the connection open for another request."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def read_chunk(self) -> bytes | None:
        """Return the next chunk of the body, or None at its end."""
        event = await self._next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Write without waiting: a server may reject a request before it has read all of it."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        fields = {"host": self._endpoint.authority, **headers}
        if body or method == "POST":
            fields = {"content-type": "application/json", **fields}
            fields["content-length"] = str(len(body))
        target = self._endpoint.base + path
        try:
            head = h11.Request(method=method, target=target, headers=list(fields.items()))
            events = (head, h11.Data(data=body), h11.EndOfMessage())
            parts = [self._http.send(event) or b"" for event in events]
        except (h11.LocalProtocolError, UnicodeError):
            # The message of h11 quotes the header, which may be the API key.
            raise TargetUnreachable(
                f"the request to {self._endpoint} is not valid HTTP; check the URL and the API key"
            ) from None
        self._transport.write(b"".join(parts))

    async def _read_head(self) -> tuple[int, dict[str, str]]:
        while True:
            event = await self._next_event()
            if not isinstance(event, h11.Response | h11.InformationalResponse):
                raise TargetUnreachable(f"{self._endpoint} sent an invalid response (no status)")
            if event.status_code >= 200 or event.status_code == 101:
                pairs = event.headers
                found = {k.decode("latin-1"): v.decode("latin-1") for k, v in pairs}
                return event.status_code, found

    async def _next_event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._receive())
        except h11.RemoteProtocolError as error:
            raise TargetUnreachable(
                f"{self._endpoint} sent an invalid response ({error})"
            ) from error
        return event

    async def _receive(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout):
                data = await self._received.get()
        except TimeoutError:
            raise TargetTimeout(f"{self._endpoint} sent no data for {self._timeout:g} s") from None
        if isinstance(data, Exception):
            raise TargetUnreachable(f"the connection to {self._endpoint} failed") from data
        if not data and self._http.their_state in (h11.IDLE, h11.SEND_RESPONSE):
            raise TargetUnreachable(
                f"{self._endpoint} closed the connection before the response was complete"
            )
        return data


class StreamedResponse:
    """A response whose status and headers have arrived. The body can be read once."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: HttpConnection, status: int, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives."""
        while (chunk := await self._connection.read_chunk()) is not None:
            yield chunk


@asynccontextmanager
async def open_connection(
    endpoint: Endpoint, timeout_seconds: float
) -> AsyncIterator[HttpConnection]:
    """Open a connection. Leaving the block aborts it, which the server sees as a disconnect."""
    loop = asyncio.get_running_loop()
    limit = min(timeout_seconds, CONNECT_TIMEOUT_SECONDS)
    try:
        async with asyncio.timeout(limit):
            if endpoint.socket is not None:
                transport, received = await loop.create_unix_connection(
                    _ReceiveQueue, endpoint.socket
                )
            else:
                context = _ssl_context() if endpoint.tls else None
                transport, received = await loop.create_connection(
                    _ReceiveQueue, endpoint.host, endpoint.port, ssl=context
                )
    except TimeoutError as error:
        raise TargetTimeout(f"cannot connect to {endpoint} within {limit:g} s") from error
    except (OSError, ValueError) as error:
        raise TargetUnreachable(f"cannot connect to {endpoint} ({_describe(error)})") from error
    try:
        yield HttpConnection(endpoint, transport, received, timeout_seconds)
    finally:
        transport.abort()


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the context for TLS. Loading the system certificates takes longer than a request."""
    return ssl.create_default_context()


def _describe(error: Exception) -> str:
    """Return why a connection failed, without the address that the message of the OS repeats."""
    if isinstance(error, ssl.SSLError):
        return getattr(error, "verify_message", "") or error.reason or "TLS failed"
    if isinstance(error, socket.gaierror):
        return "no such host"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else type(error).__name__


class SseParser:
    """Incremental parser of server-sent events, which returns (event, data) pairs."""

    __slots__ = ("_data", "_event", "_line")

    def __init__(self) -> None:
        self._line = b""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """Return the events that this chunk completes."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        events = []
        for line in lines:
            if text := line.removesuffix(b"\r").decode("utf-8", "replace"):
                self._read_field(text)
            elif self._data or self._event:
                events.append((self._event, "\n".join(self._data)))
                self._event, self._data = "", []
        return events

    def _read_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
