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

from dovetail.net.client_connection import Line, Take, Wait
from dovetail.net.trace_context import handed_on
from dovetail_model import EngineTimeout, EngineUnavailable

LONGEST = 64 << 20  # bytes of an answer that is read whole


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
class Patience:
    """Seconds to wait for a connection, and for the next byte of an answer."""

    connect: float = 10.0
    silence: float = 300.0


@dataclass(frozen=True)
class Call:
    """What is asked of an endpoint."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = Patience()


class Reply:
    """An answer whose head has come. Its body is read once, in pieces or whole."""

    __slots__ = ("_line", "headers", "status")

    def __init__(self, line: Line) -> None:
        self._line = line
        self.status = line.status
        self.headers: Mapping[str, str] = line.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes."""
        while (data := await self._line.body()) is not None:
            yield data

    async def pour(self, take: Take, wait: Wait) -> None:
        """The body to `take`, up to its end, each part in the call that brings it.

        Where `take` returns False, `wait` says whether there is to be more.
        """
        await self._line.pour(take, wait)

    async def read(self) -> bytes:
        """The whole body. A server that never ends is told from one that has much to say."""
        parts, size = [], 0
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > LONGEST:
                    raise EngineUnavailable(f"an answer of more than {LONGEST >> 20} MiB")
        return b"".join(parts)


class Lines:
    """The connections that are open for somebody: all of them can be broken off at once."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: set[Line] = set()

    def drop(self) -> None:
        """Whoever reads on, or still waits for an answer, is told that the connection broke."""
        for line in self._open:
            line.drop()

    @contextmanager
    def holding(self, line: Line) -> Iterator[None]:
        self._open.add(line)
        try:
            yield
        finally:
            self._open.discard(line)
            line.drop()


@asynccontextmanager
async def send(endpoint: Endpoint, call: Call, lines: Lines | None = None) -> AsyncIterator[Reply]:
    """The answer to a call. Leaving the block drops the connection, finished or not."""
    line = await _connect(endpoint, call.patience)
    with (lines or Lines()).holding(line):
        line.ask(_request(str(endpoint), endpoint, call))
        await line.head()
        yield Reply(line)


async def fetch(endpoint: Endpoint, call: Call) -> tuple[int, bytes]:
    """Status and whole body of a short answer."""
    async with send(endpoint, call) as reply:
        return reply.status, await reply.read()


def _request(name: str, endpoint: Endpoint, call: Call) -> list[bytes]:
    """A request's bytes. What would break its frame is refused."""
    headers = {
        "host": endpoint.authority,
        "connection": "close",
        **handed_on(),
        **endpoint.headers,
        **call.headers,
    }
    if call.body or call.method == "POST":
        headers.setdefault("content-type", "application/json")
        headers["content-length"] = str(len(call.body))
    try:
        head = h11.Request(
            method=call.method, target=endpoint.base + call.path, headers=list(headers.items())
        )
    except (h11.LocalProtocolError, UnicodeError):
        # What h11 says of it quotes the header, which may be a key.
        raise EngineUnavailable(f"a request to {name} cannot be sent as HTTP") from None
    return [h11.Connection(h11.CLIENT).send(head) or b"", call.body]


@cache
def _secure() -> ssl.SSLContext:
    """Read once: the certificates of a system take longer to load than an answer to come."""
    return ssl.create_default_context()


def _reason(fault: Exception) -> str:
    """Why there is no connection. The system's own text would name the address once more."""
    if isinstance(fault, ssl.SSLError):
        return getattr(fault, "verify_message", "") or fault.reason or "TLS failed"
    if isinstance(fault, socket.gaierror):
        return "no such host"
    number = getattr(fault, "errno", None)
    return os.strerror(number) if number else type(fault).__name__


async def _connect(endpoint: Endpoint, patience: Patience) -> Line:
    loop, name = asyncio.get_running_loop(), str(endpoint)

    def line() -> Line:
        return Line(name, patience.silence)

    try:
        async with asyncio.timeout(patience.connect):
            if endpoint.socket is not None:
                _, connected = await loop.create_unix_connection(line, endpoint.socket)
            else:
                secure = _secure() if endpoint.tls else None
                _, connected = await loop.create_connection(
                    line, endpoint.host, endpoint.port, ssl=secure
                )
    except TimeoutError as fault:
        raise EngineTimeout(f"no connection to {name} in {patience.connect:g} s") from fault
    except (OSError, ValueError) as fault:
        raise EngineUnavailable(f"no connection to {name} ({_reason(fault)})") from fault
    return connected
