"""Relay bytes between clients and a server, unchanged.

Each client connection has its own connection to the server. Bytes are forwarded before they are
passed to the observer, which therefore cannot delay them. Backpressure, half-closed connections and
aborts of one side are passed to the other.

The head of a request is forwarded when it is complete, and only if its `Host` and `Origin` are
allowed. With a TLS server two more things differ: the `Host` headers of requests are rewritten to
name that server, and a client that closes its half is treated as disconnected, since TLS has no
half-close.
"""

import asyncio
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Literal, Protocol, cast

from dovetail.access.browser import BrowserPolicy
from dovetail.net.http_client import Endpoint
from dovetail.watch.request_heads import RequestHeadFilter
from dovetail_model import Forbidden

RelayDirection = Literal["request", "response", "closed"]
CONNECT_TIMEOUT_SECONDS = 10.0
LINGER_SECONDS = 2.0  # how long a refused client may send the rest of its request
BACKLOG = 4096


class RelayCallback(Protocol):
    """Observes relayed bytes. It must never raise and never block."""

    def __call__(
        self, connection: int, direction: RelayDirection, data: bytes, at: float
    ) -> None: ...


@dataclass
class RelayStats:
    """Counts of the relay."""

    connections: int = 0
    unreachable: int = 0
    refused: int = 0  # requests of foreign hosts or origins
    open_connections: set["_ClientProtocol"] = field(default_factory=set, repr=False)
    idle: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # set while none is open

    def __post_init__(self) -> None:
        self.idle.set()


class TcpRelay:
    """Listens, and relays to one server.

    `policy`: who may use it; None relays everything. `headers` are added to every request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_data: RelayCallback | None = None,
        policy: BrowserPolicy | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.stats = RelayStats()
        self._headers = headers or {}
        self._policy = policy
        self._endpoint = endpoint
        self._on_data = on_data or _ignore
        self._numbers = count(1)
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> str:
        """Start listening and return the address. Port 0 selects a free port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                f"cannot listen on {host} port {port}: Address already in use; "
                "set another port with --port"
            ) from error
        name, number = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{name}]' if ':' in name else name}:{number}"

    async def close(self) -> None:
        """Stop listening and abort all connections."""
        if self._server is not None:
            self._server.close()
        for client in list(self.stats.open_connections):
            client.abort()
        await self.stats.idle.wait()

    def _accept(self) -> "_ClientProtocol":
        client = _ClientProtocol(next(self._numbers), self._endpoint, self.stats, self._on_data)
        host = self._endpoint.authority if self._endpoint.tls else None
        if host is not None or self._policy is not None or self._headers:
            client.filter = RequestHeadFilter(self._policy, host, self._headers)
        return client


class _RelayProtocol(asyncio.Protocol):
    """One end of a relayed connection."""

    direction: RelayDirection = "response"

    def __init__(self, number: int, on_data: RelayCallback) -> None:
        self.number = number
        self.on_data = on_data
        self.transport: asyncio.Transport | None = None
        self.peer: _RelayProtocol | None = None
        self.filter: RequestHeadFilter | None = None
        self.write_paused = False  # whether the transport's buffer is full
        self._pending: list[bytes] = []  # received before the peer was connected
        self._has_eof = False
        self._discarding = False  # the client was refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        other = self.peer
        if other is None:
            self._pending.append(data)
            if self.transport is not None:
                self.transport.pause_reading()  # again: uvloop starts by reading
            return
        if other.transport is None:
            return
        try:
            other.transport.write(data if self.filter is None else self.filter.feed(data))
        except Forbidden as error:
            self.refuse(error)
            return
        self.on_data(self.number, self.direction, data, monotonic())

    def refuse(self, error: Forbidden) -> None:
        """Close the connection because of a request that is not allowed."""
        self.abort()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def eof_received(self) -> bool:
        """Half-close the peer. The other direction stays open until its sender closes it."""
        self._has_eof = True
        if self._discarding:
            return False
        other = self.peer
        if other is None:
            return True  # passed on once the peer is connected
        if other.transport is None:
            return False
        if not other.transport.can_write_eof():
            other.transport.close()
            return False
        other.transport.write_eof()
        if other._has_eof:
            other.transport.close()
            return False
        return True

    def connect_peer(self, other: "_RelayProtocol") -> None:
        """Connect the other side and send it the bytes received before."""
        self.peer = other
        early, self._pending = self._pending, []
        for data in early:
            self.data_received(data)
        if self._has_eof:
            self.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        other = self.peer
        if other is not None and other.transport is not None:
            if exc is not None and self.aborts_peer:
                other.transport.abort()
            else:
                other.transport.close()  # after its buffer is flushed

    @property
    def aborts_peer(self) -> bool:
        """Return whether an error on this side aborts the other."""
        return not self._has_eof

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _ClientProtocol(_RelayProtocol):
    """The client's side. Reading is paused until the server is connected."""

    direction = "request"

    def __init__(
        self, number: int, endpoint: Endpoint, stats: RelayStats, on_data: RelayCallback
    ) -> None:
        super().__init__(number, on_data)
        self._endpoint = endpoint
        self._stats = stats
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._stats.connections += 1
        self._stats.open_connections.add(self)
        self._stats.idle.clear()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        server = _RelayProtocol(self.number, self.on_data)
        server.peer = self
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await _open_connection(self._endpoint, server)
        except (OSError, TimeoutError):
            self._stats.unreachable += 1
            self._send_error(b"502 Bad Gateway", f"cannot connect to {self._endpoint}")
            return
        if self.transport is None:  # it disconnected meanwhile
            server.abort()
            return
        self.connect_peer(server)
        if self.transport is not None and not server.write_paused:
            self.transport.resume_reading()

    def refuse(self, error: Forbidden) -> None:
        self._stats.refused += 1
        server, self.peer = self.peer, None
        if server is not None:
            server.abort()
        self._send_error(b"403 Forbidden", error.message)

    def _send_error(self, status: bytes, message: str) -> None:
        """Send a response of the relay itself, and close the connection."""
        if self.transport is not None:
            text = f"dovetail watch: {message}\n".encode()
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (status, len(text), text)
            )
            self._close_later(self.transport)

    def _close_later(self, transport: asyncio.Transport) -> None:
        """Close after the client has: unread data would reset the connection, and the response."""
        self._discarding = True
        transport.write_eof()
        transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.close)

    @property
    def aborts_peer(self) -> bool:
        return True  # the client is gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_data(self.number, "closed", b"", monotonic())
        self._stats.open_connections.discard(self)
        if not self._stats.open_connections:
            self._stats.idle.set()


async def _open_connection(endpoint: Endpoint, protocol: _RelayProtocol) -> None:
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        await loop.create_unix_connection(lambda: protocol, endpoint.socket)
        return
    ssl_context = ssl.create_default_context() if endpoint.tls else None
    await loop.create_connection(lambda: protocol, endpoint.host, endpoint.port, ssl=ssl_context)


def _ignore(connection: int, direction: RelayDirection, data: bytes, at: float) -> None:
    """Do not observe."""
