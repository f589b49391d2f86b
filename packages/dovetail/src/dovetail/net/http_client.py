"""A small HTTP/1.1 client for engines, with streamed response bodies.

Leaving a response before its end closes its connection, which is the cancellation signal that every
engine understands. A connection whose response is complete can carry the next request of its
`ConnectionGroup`. Connection failures raise errors of `dovetail_model`; the caller checks the
status.
"""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

from dovetail.net.client_connection import ClientConnection, DrainChunks, PushChunk
from dovetail.net.open_files import engine_connections, is_file_shortage
from dovetail.net.trace_context import propagation_headers
from dovetail_model import EngineTimeout, EngineUnavailable

_TOKEN = "[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_VALID_HEAD = re.compile(
    rf"{_TOKEN} [!-~]+ HTTP/1\.1\r\n(?:{_TOKEN}: (?:[!-~](?:[\t -~]*[!-~])?)?\r\n)+\r\n"
)
MAX_BODY_BYTES = 64 << 20  # of a response that is not streamed
IDLE_SECONDS = 3.0  # less than the 5 seconds after which uvicorn and vLLM close
MAX_IDLE_CONNECTIONS = 32  # per engine


@dataclass(frozen=True)
class Endpoint:
    """Address of an engine (TCP or unix socket) and the headers of every request to it.

    steps: The engine uses the step protocol instead of HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 80
    socket: str | None = None
    tls: bool = False
    base: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    steps: bool = False

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """Parse an address such as `http://host:8000/base` or `unix:///a/b.sock`.

        `tcp://host:port` and `tls://host:port` are engines that use the step protocol.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(socket=parts.path, headers=headers or {})
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port and not parts.path:
            tls = parts.scheme == "tls"
            return cls(parts.hostname, parts.port, None, tls, "", headers or {}, steps=True)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected an http://, https:// or unix:// URL, got {url!r}")
        if parts.username or parts.query or parts.fragment:
            raise ValueError(
                "the URL must not contain credentials, a query or a fragment "
                f"(host {parts.hostname!r})"
            )
        tls = parts.scheme == "https"
        port = parts.port if parts.port is not None else 443 if tls else 80
        base = parts.path.rstrip("/")
        return cls(parts.hostname, port, None, tls, base, headers or {})

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        if self.socket is not None:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix://{self.socket}"
        plain, encrypted = ("tcp", "tls") if self.steps else ("http", "https")
        return f"{encrypted if self.tls else plain}://{self.authority}{self.base}"


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a request, in seconds.

    connect: To establish a connection.
    read: Until the next byte of the response arrives.
    """

    connect: float = 10.0
    read: float = 300.0


@dataclass(frozen=True)
class ClientRequest:
    """A request to an endpoint."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = Timeouts()


class ClientResponse:
    """A response whose status and headers have arrived. Its body can be read once."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives."""
        while (data := await self._connection.read()) is not None:
            yield data

    async def stream_to(self, push: PushChunk, drain: DrainChunks) -> None:
        """Push the body to `push` until it ends, each part in the call that receives it.

        When `push` returns False, `drain` is awaited; it returns whether to continue.
        """
        await self._connection.stream_to(push, drain)

    def skip_rest(self) -> None:
        """Discard the rest of the body. Leaving the response then does not cancel it."""
        self._connection.skip_rest()

    async def read(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the complete body, at most `max_bytes`."""
        parts, size = [], 0
        async with aclosing(self.iter_chunks()) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    raise EngineUnavailable(f"the response is larger than {max_bytes >> 20} MiB")
        return b"".join(parts)


class ConnectionGroup:
    """The connections to one endpoint: idle ones are reused, and all can be aborted together."""

    __slots__ = ("_idle", "_max_idle", "_open")

    def __init__(self, max_idle: int = MAX_IDLE_CONNECTIONS) -> None:
        self._max_idle = max_idle
        self._open: set[ClientConnection] = set()
        self._idle: list[ClientConnection] = []

    def abort_all(self) -> None:
        """Abort all connections. Reading from them then raises `EngineUnavailable`."""
        for connection in (*self._open, *self._idle):
            connection.abort()

    def take_idle(self, read_timeout: float) -> ClientConnection | None:
        """Return the connection that was used last, if one is idle."""
        for connection in reversed(self._idle):
            if connection.can_be_reused:  # otherwise its response has not ended, or it is closing
                self._idle.remove(connection)
                connection.resume(read_timeout)
                return connection
        return None

    @contextmanager
    def track(self, connection: ClientConnection) -> Iterator[None]:
        """Use a connection in the block. It is closed afterwards unless it can be reused."""
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            can_rest = connection.can_be_reused or connection.is_finishing
            if can_rest and len(self._idle) < self._max_idle:
                self._idle.append(connection)
                connection.rest(IDLE_SECONDS, self._remove_idle)
            else:
                connection.abort()

    def _remove_idle(self, connection: ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


@asynccontextmanager
async def send_request(
    endpoint: Endpoint, request: ClientRequest, connections: ConnectionGroup | None = None
) -> AsyncIterator[ClientResponse]:
    """Send a request and yield the response. Leaving the block before its end cancels it.

    Connections are reused within a `ConnectionGroup`.
    """
    if request.method != "GET":  # health checks use reserved files
        engine_connections.check_capacity()
    data = _encode_request(endpoint, request, keep_alive=connections is not None)
    with engine_connections.reserve():
        if connections is not None:
            idle = connections.take_idle(request.timeouts.read)
            if idle is not None:
                with connections.track(idle):
                    if await _send_again(idle, data):
                        yield ClientResponse(idle)
                        return
        connection = await _connect(endpoint, request.timeouts)
        with (connections or ConnectionGroup(max_idle=0)).track(connection):
            connection.send(data)
            await connection.read_head()
            yield ClientResponse(connection)


async def _send_again(idle: ClientConnection, data: list[bytes]) -> bool:
    """Send a request on a used connection. Returns False if the server closed it meanwhile.

    Engines close idle connections without a notice, so that such a request must be repeated.
    """
    try:
        idle.send(data)
        await idle.read_head()
    except EngineUnavailable:
        if idle.has_received:
            raise
        return False
    return True


async def fetch(endpoint: Endpoint, request: ClientRequest) -> tuple[int, bytes]:
    """Send a request and return the status and the complete body of the response."""
    async with send_request(endpoint, request) as response:
        return response.status, await response.read()


def _encode_request(
    endpoint: Endpoint, request: ClientRequest, *, keep_alive: bool = False
) -> list[bytes]:
    """Encode a request. Raises `EngineUnavailable` for headers that HTTP does not allow."""
    headers = {
        "host": endpoint.authority,
        "connection": "keep-alive" if keep_alive else "close",
        **propagation_headers(),
        **endpoint.headers,
        **request.headers,
    }
    if request.body or request.method == "POST":
        headers.setdefault("content-type", "application/json")
        headers["content-length"] = str(len(request.body))
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"{request.method} {endpoint.base}{request.path} HTTP/1.1\r\n{''.join(lines)}\r\n"
    # A value with a line break would add a line.
    if head.count("\n") != len(headers) + 2 or not _VALID_HEAD.fullmatch(head):
        # The error does not quote the header, which may contain an API key.
        raise EngineUnavailable(
            f"the request to {endpoint} has a method, path or header that HTTP does not allow"
        )
    return [head.encode("ascii"), request.body]


@cache
def _ssl_context() -> ssl.SSLContext:
    """Load the system's CA certificates once: loading takes longer than a request."""
    return ssl.create_default_context()


def _describe_error(error: Exception) -> str:
    """Describe why connecting failed. The system's own message would repeat the address."""
    if isinstance(error, ssl.SSLError):
        return getattr(error, "verify_message", "") or error.reason or "TLS handshake failed"
    if isinstance(error, socket.gaierror):
        return "host not found"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else type(error).__name__


async def _connect(endpoint: Endpoint, timeouts: Timeouts) -> ClientConnection:
    loop, name = asyncio.get_running_loop(), str(endpoint)

    def new_connection() -> ClientConnection:
        return ClientConnection(name, timeouts.read)

    try:
        async with asyncio.timeout(timeouts.connect):
            if endpoint.socket is not None:
                _, connection = await loop.create_unix_connection(new_connection, endpoint.socket)
            else:
                ssl_context = _ssl_context() if endpoint.tls else None
                _, connection = await loop.create_connection(
                    new_connection, endpoint.host, endpoint.port, ssl=ssl_context
                )
    except TimeoutError as error:
        raise EngineTimeout(f"no connection to {name} within {timeouts.connect:g} s") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_file_shortage(error):
            raise engine_connections.shortage() from error
        raise EngineUnavailable(f"no connection to {name} ({_describe_error(error)})") from error
    return connection
