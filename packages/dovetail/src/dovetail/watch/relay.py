"""The passthrough: bytes from a client to a server and back, as they come and nothing else.

Every connection of a client gets one to the server. Bytes are passed on before anybody looks at
them; whoever looks gets the same objects afterwards and cannot hold them up. A side that cannot
take more makes the other side wait, an end of one side is an end for the other, and a connection
that breaks breaks the other at once.

With a TLS server one thing differs: the `Host` lines of requests are made to name that server, and
a client that closes its half is taken for one that has hung up, since TLS has no half to close.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Literal, Protocol, cast

from dovetail.net.http_client import Endpoint
from dovetail.watch.exchange import HostRewriter

RelayDirection = Literal["asked", "told", "closed"]
CONNECT_TIMEOUT_SECONDS = 10.0  # seconds
BACKLOG = 4096


class RelayCallback(Protocol):
    """Who looks on. Must never raise and never take long."""

    def __call__(
        self, connection: int, direction: RelayDirection, data: bytes, at: float
    ) -> None: ...


@dataclass
class RelayStats:
    """What went through."""

    connections: int = 0
    unreachable: int = 0
    open: set["_ClientProtocol"] = field(default_factory=set, repr=False)
    idle: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # none is open

    def __post_init__(self) -> None:
        self.idle.set()


class TcpRelay:
    """Listens, and relays to one server."""

    def __init__(self, endpoint: Endpoint, on_data: RelayCallback | None = None) -> None:
        self.stats = RelayStats()
        self._endpoint = endpoint
        self._on_data = on_data or _ignore
        self._numbers = count(1)
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> str:
        """Begins. The address where clients reach it; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        name, number = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{name}]' if ':' in name else name}:{number}"

    async def close(self) -> None:
        """Takes no more connections and breaks those there are."""
        if self._server is not None:
            self._server.close()
        for client in list(self.stats.open):
            client.abort()
        await self.stats.idle.wait()

    def _accept(self) -> "_ClientProtocol":
        return _ClientProtocol(next(self._numbers), self._endpoint, self.stats, self._on_data)


class _RelayProtocol(asyncio.Protocol):
    """One end of a relayed connection."""

    direction: RelayDirection = "told"

    def __init__(self, number: int, sees: RelayCallback) -> None:
        self.number = number
        self.on_data = sees
        self.transport: asyncio.Transport | None = None
        self.peer: _RelayProtocol | None = None
        self.rewrite: Callable[[bytes], bytes] | None = None
        self.write_paused = False  # whether what is written here has to wait
        self._pending: list[bytes] = []  # what came before there was another side
        self._has_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type

    def data_received(self, data: bytes) -> None:
        other = self.peer
        if other is None:
            self._pending.append(data)
            if self.transport is not None:
                self.transport.pause_reading()  # again: made by uvloop, it begins by reading
            return
        if other.transport is None:
            return
        other.transport.write(data if self.rewrite is None else self.rewrite(data))
        self.on_data(self.number, self.direction, data, monotonic())

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def eof_received(self) -> bool:
        """This half is over. The other one goes on until it ends by itself."""
        self._has_eof = True
        other = self.peer
        if other is None:
            return True  # told as soon as there is somebody to be told
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
        """There is another side now."""
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
                other.transport.close()  # once what is still on its way has left

    @property
    def aborts_peer(self) -> bool:
        """Whether a fault on this side leaves nothing to be done for the other."""
        return not self._has_eof

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _ClientProtocol(_RelayProtocol):
    """The client's end. Not much is read from it until there is a connection to the server."""

    direction = "asked"

    def __init__(
        self, number: int, endpoint: Endpoint, traffic: RelayStats, sees: RelayCallback
    ) -> None:
        super().__init__(number, sees)
        self._endpoint = endpoint
        self._stats = traffic
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._stats.connections += 1
        self._stats.open.add(self)
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
            self._send_bad_gateway()
            return
        if self.transport is None:  # it has hung up meanwhile
            server.abort()
            return
        if self._endpoint.tls:
            self.rewrite = HostRewriter(self._endpoint.authority).rewrite
        self.connect_peer(server)
        if self.transport is not None and not server.write_paused:
            self.transport.resume_reading()

    def _send_bad_gateway(self) -> None:
        """The one answer of our own: there is no server that could give one."""
        if self.transport is not None:
            text = f"dovetail watch: no connection to {self._endpoint}\n".encode()
            self.transport.write(
                b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(text), text)
            )
            self.transport.close()

    @property
    def aborts_peer(self) -> bool:
        return True  # nobody is there to be told anything

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_data(self.number, "closed", b"", monotonic())
        self._stats.open.discard(self)
        if not self._stats.open:
            self._stats.idle.set()


async def _open_connection(endpoint: Endpoint, side: _RelayProtocol) -> None:
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        await loop.create_unix_connection(lambda: side, endpoint.socket)
        return
    secure = ssl.create_default_context() if endpoint.tls else None
    await loop.create_connection(lambda: side, endpoint.host, endpoint.port, ssl=secure)


def _ignore(connection: int, direction: RelayDirection, data: bytes, at: float) -> None:
    """Nobody looks on."""
