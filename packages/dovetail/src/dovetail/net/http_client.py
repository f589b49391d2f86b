"""A small HTTP/1.1 client for engines: one connection a request, the body as it comes.

Closing a reply closes its connection, which is how every engine learns that nobody wants the rest.
That is why connections are not kept for another request. Faults of the line are errors of
`dovetail_model`; a status is the caller's to judge.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

import h11

from dovetail.net.client_connection import ClientConnection, DrainChunks, PushChunk
from dovetail.net.trace_context import propagation_headers
from dovetail_model import EngineTimeout, EngineUnavailable

MAX_BODY_BYTES = 64 << 20  # bytes of an answer that is read whole


@dataclass(frozen=True)
class Endpoint:
    """Where an engine listens: a TCP address or a unix socket, and what each request carries."""

    host: str = "127.0.0.1"
    port: int = 80
    socket: str | None = None
    tls: bool = False
    base: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """The endpoint of an address such as `http://host:8000/base` or `unix:///a/b.sock`."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(socket=parts.path, headers=headers or {})
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http address: {url!r}")
        if parts.username or parts.query or parts.fragment:
            raise ValueError(f"not the plain address of a server: {parts.hostname!r} and more")
        tls = parts.scheme == "https"
        port = parts.port if parts.port is not None else 443 if tls else 80
        base = parts.path.rstrip("/")
        return cls(parts.hostname, port, None, tls, base, headers or {})

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        if self.socket is not None:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix://{self.socket}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for a connection, and for the next byte of an answer."""

    connect: float = 10.0
    read: float = 300.0


@dataclass(frozen=True)
class ClientRequest:
    """What is asked of an endpoint."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = Timeouts()


class ClientResponse:
    """An answer whose head has come. Its body is read once, in pieces or whole."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes."""
        while (data := await self._connection.read()) is not None:
            yield data

    async def stream_to(self, push: PushChunk, drain: DrainChunks) -> None:
        """The body to `take`, up to its end, each part in the call that brings it.

        Where `take` returns False, `wait` says whether there is to be more.
        """
        await self._connection.stream_to(push, drain)

    async def read(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. A server that never ends is told from one that has much to say."""
        parts, size = [], 0
        async with aclosing(self.iter_chunks()) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    raise EngineUnavailable(f"an answer of more than {max_bytes >> 20} MiB")
        return b"".join(parts)


class ConnectionGroup:
    """The connections that are open for somebody: all of them can be broken off at once."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: set[ClientConnection] = set()

    def abort_all(self) -> None:
        """Whoever reads on, or still waits for an answer, is told that the connection broke."""
        for line in self._open:
            line.abort()

    @contextmanager
    def track(self, connection: ClientConnection) -> Iterator[None]:
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            connection.abort()


@asynccontextmanager
async def send_request(
    endpoint: Endpoint, request: ClientRequest, connections: ConnectionGroup | None = None
) -> AsyncIterator[ClientResponse]:
    """The answer to a call. Leaving the block drops the connection, finished or not."""
    line = await _connect(endpoint, request.timeouts)
    with (connections or ConnectionGroup()).track(line):
        line.send(_encode_request(str(endpoint), endpoint, request))
        await line.read_head()
        yield ClientResponse(line)


async def fetch(endpoint: Endpoint, request: ClientRequest) -> tuple[int, bytes]:
    """Status and whole body of a short answer."""
    async with send_request(endpoint, request) as reply:
        return reply.status, await reply.read()


def _encode_request(name: str, endpoint: Endpoint, request: ClientRequest) -> list[bytes]:
    """A request's bytes. What would break its frame is refused."""
    headers = {
        "host": endpoint.authority,
        "connection": "close",
        **propagation_headers(),
        **endpoint.headers,
        **request.headers,
    }
    if request.body or request.method == "POST":
        headers.setdefault("content-type", "application/json")
        headers["content-length"] = str(len(request.body))
    try:
        head = h11.Request(
            method=request.method,
            target=endpoint.base + request.path,
            headers=list(headers.items()),
        )
    except (h11.LocalProtocolError, UnicodeError):
        # What h11 says of it quotes the header, which may be a key.
        raise EngineUnavailable(f"a request to {name} cannot be sent as HTTP") from None
    return [h11.Connection(h11.CLIENT).send(head) or b"", request.body]


@cache
def _ssl_context() -> ssl.SSLContext:
    """Read once: the certificates of a system take longer to load than an answer to come."""
    return ssl.create_default_context()


def _describe_error(fault: Exception) -> str:
    """Why there is no connection. The system's own text would name the address once more."""
    if isinstance(fault, ssl.SSLError):
        return getattr(fault, "verify_message", "") or fault.reason or "TLS failed"
    if isinstance(fault, socket.gaierror):
        return "no such host"
    number = getattr(fault, "errno", None)
    return os.strerror(number) if number else type(fault).__name__


async def _connect(endpoint: Endpoint, timeouts: Timeouts) -> ClientConnection:
    loop, name = asyncio.get_running_loop(), str(endpoint)

    def line() -> ClientConnection:
        return ClientConnection(name, timeouts.read)

    try:
        async with asyncio.timeout(timeouts.connect):
            if endpoint.socket is not None:
                _, connected = await loop.create_unix_connection(line, endpoint.socket)
            else:
                secure = _ssl_context() if endpoint.tls else None
                _, connected = await loop.create_connection(
                    line, endpoint.host, endpoint.port, ssl=secure
                )
    except TimeoutError as fault:
        raise EngineTimeout(f"no connection to {name} in {timeouts.connect:g} s") from fault
    except (OSError, ValueError) as fault:
        raise EngineUnavailable(f"no connection to {name} ({_describe_error(fault)})") from fault
    return connected
