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
from dovetail.watch.hostline import HostLine

Direction = Literal["asked", "told", "closed"]
CONNECT_PATIENCE = 10.0  # seconds
BACKLOG = 4096


class Sees(Protocol):
    """Who looks on. Must never raise and never take long."""

    def __call__(self, connection: int, direction: Direction, data: bytes, at: float) -> None: ...


@dataclass
class Traffic:
    """What went through."""

    connections: int = 0
    unreachable: int = 0
    open: set["_Client"] = field(default_factory=set, repr=False)
    idle: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # none is open

    def __post_init__(self) -> None:
        self.idle.set()


class Relay:
    """Listens, and relays to one server."""

    def __init__(self, endpoint: Endpoint, sees: Sees | None = None) -> None:
        self.traffic = Traffic()
        self._endpoint = endpoint
        self._sees = sees or _nobody
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
        for client in list(self.traffic.open):
            client.abort()
        await self.traffic.idle.wait()

    def _accept(self) -> "_Client":
        return _Client(next(self._numbers), self._endpoint, self.traffic, self._sees)


class _Side(asyncio.Protocol):
    """One end of a relayed connection."""

    direction: Direction = "told"

    def __init__(self, number: int, sees: Sees) -> None:
        self.number = number
        self.sees = sees
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self.change: Callable[[bytes], bytes] | None = None
        self.full = False  # whether what is written here has to wait
        self._early: list[bytes] = []  # what came before there was another side
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is None:
            self._early.append(data)
            if self.transport is not None:
                self.transport.pause_reading()  # again: made by uvloop, it begins by reading
            return
        if other.transport is None:
            return
        other.transport.write(data if self.change is None else self.change(data))
        self.sees(self.number, self.direction, data, monotonic())

    def pause_writing(self) -> None:
        self.full = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.full = False
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        """This half is over. The other one goes on until it ends by itself."""
        self._ended = True
        other = self.other
        if other is None:
            return True  # told as soon as there is somebody to be told
        if other.transport is None:
            return False
        if not other.transport.can_write_eof():
            other.transport.close()
            return False
        other.transport.write_eof()
        if other._ended:
            other.transport.close()
            return False
        return True

    def join(self, other: "_Side") -> None:
        """There is another side now."""
        self.other = other
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        if self._ended:
            self.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        other = self.other
        if other is not None and other.transport is not None:
            if exc is not None and self.breaks:
                other.transport.abort()
            else:
                other.transport.close()  # once what is still on its way has left

    @property
    def breaks(self) -> bool:
        """Whether a fault on this side leaves nothing to be done for the other."""
        return not self._ended

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Client(_Side):
    """The client's end. Not much is read from it until there is a connection to the server."""

    direction = "asked"

    def __init__(self, number: int, endpoint: Endpoint, traffic: Traffic, sees: Sees) -> None:
        super().__init__(number, sees)
        self._endpoint = endpoint
        self._traffic = traffic
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._traffic.connections += 1
        self._traffic.open.add(self)
        self._traffic.idle.clear()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        server = _Side(self.number, self.sees)
        server.other = self
        try:
            async with asyncio.timeout(CONNECT_PATIENCE):
                await _dial(self._endpoint, server)
        except (OSError, TimeoutError):
            self._traffic.unreachable += 1
            self._refuse()
            return
        if self.transport is None:  # it has hung up meanwhile
            server.abort()
            return
        if self._endpoint.tls:
            self.change = HostLine(self._endpoint.authority).change
        self.join(server)
        if self.transport is not None and not server.full:
            self.transport.resume_reading()

    def _refuse(self) -> None:
        """The one answer of our own: there is no server that could give one."""
        if self.transport is not None:
            text = f"dovetail watch: no connection to {self._endpoint}\n".encode()
            self.transport.write(
                b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(text), text)
            )
            self.transport.close()

    @property
    def breaks(self) -> bool:
        return True  # nobody is there to be told anything

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.sees(self.number, "closed", b"", monotonic())
        self._traffic.open.discard(self)
        if not self._traffic.open:
            self._traffic.idle.set()


async def _dial(endpoint: Endpoint, side: _Side) -> None:
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        await loop.create_unix_connection(lambda: side, endpoint.socket)
        return
    secure = ssl.create_default_context() if endpoint.tls else None
    await loop.create_connection(lambda: side, endpoint.host, endpoint.port, ssl=secure)


def _nobody(connection: int, direction: Direction, data: bytes, at: float) -> None:
    """Nobody looks on."""
