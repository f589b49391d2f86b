"""Bytes on a connection that no honest client sends, and the expected responses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from http_fixture import NAME, Reply, Stage, read_reply

from dovetail.net.http_protocol import BoundedHttpProtocol

BODY = b'{"model":"%b","messages":[{"role":"user","content":"Hi"}]}' % NAME.encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"


def chunks(*parts: bytes, trailers: bytes = b"") -> bytes:
    """A chunked body, with trailers."""
    sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return sent + b"0\r\n" + trailers + b"\r\n"


def post(headers: bytes, body: bytes = BODY, *, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n" + body


def get(path: bytes = b"/live", headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n"


@dataclass(frozen=True)
class Shape:
    """A request that can be parsed in two ways, or in none.

    status: The only correct status.
    """

    name: str
    sent: bytes
    status: int = 400


#: Requests for which a proxy and our server could disagree about where they end.
SMUGGLING = (
    Shape("a length and chunks", post(LENGTH + CHUNKED, chunks(BODY))),
    Shape("chunks and a length", post(CHUNKED + LENGTH, chunks(BODY))),
    Shape("two lengths", post(LENGTH + LENGTH)),
    Shape("two lengths that differ", post(LENGTH + b"content-length: 5\r\n")),
    Shape("a list of lengths", post(b"content-length: 5, 5\r\n")),
    Shape("a signed length", post(b"content-length: +5\r\n")),
    Shape("a negative length", post(b"content-length: -1\r\n")),
    Shape("a length in hex", post(b"content-length: 0x5\r\n")),
    Shape("no host", post(LENGTH).replace(b"host: localhost\r\n", b"")),
    Shape("two hosts", post(b"host: other\r\n" + LENGTH)),
    Shape("twice the same host", post(b"Host: localhost\r\n" + LENGTH)),
    Shape("a coding before chunks", post(b"transfer-encoding: gzip, chunked\r\n", chunks(BODY))),
    Shape(
        "a coding in its own header", post(b"transfer-encoding: gzip\r\n" + CHUNKED, chunks(BODY))
    ),
    Shape("no coding", post(b"transfer-encoding: identity\r\n", b"")),
    Shape("a length of no digits", post(b"content-length: \r\n")),
    Shape("a length beyond all numbers", post(b"content-length: " + b"9" * 30 + b"\r\n")),
    Shape("a length beyond all bodies", post(b"content-length: 18446744073709551615\r\n"), 413),
    Shape("an unknown coding", post(b"transfer-encoding: xchunked\r\n", chunks(BODY))),
    Shape("chunks not last", post(b"transfer-encoding: chunked, x\r\n", chunks(BODY))),
    Shape("chunks twice", post(CHUNKED + CHUNKED, chunks(BODY))),
    Shape("a space before the colon", post(b"transfer-encoding : chunked\r\n", chunks(BODY))),
    Shape("a vertical tab", post(b"transfer-encoding: \x0bchunked\r\n", chunks(BODY))),
    Shape("a folded line", post(LENGTH + b"x-a: b\r\n transfer-encoding: chunked\r\n")),
    Shape("a chunk's size with 0x", post(CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n")),
    Shape("a negative chunk", post(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n")),
    Shape("a chunk beyond all numbers", post(CHUNKED, b"F" * 17 + b"\r\nhello\r\n0\r\n\r\n")),
    Shape("a chunk longer than told", post(CHUNKED, b"5\r\nhelloXX0\r\n\r\n")),
    Shape("chunks with bare newlines", post(CHUNKED, b"5\nhello\n0\n\n")),
    Shape("bare newlines", post(LENGTH).replace(b"\r\n", b"\n")),
)

#: Bytes that are not HTTP/1.1.
GARBAGE = (
    Shape("a NUL in a value", post(LENGTH + b"x-a: b\0c\r\n")),
    Shape("a carriage return in a value", post(LENGTH + b"x-a: b\rc\r\n")),
    Shape("a name with a space", post(LENGTH + b"x a: b\r\n")),
    Shape("a line without a colon", post(LENGTH + b"nothing\r\n")),
    Shape("a value without a name", post(LENGTH + b": b\r\n")),
    Shape("a path in UTF-8", get("/v1/ü".encode())),
    Shape("no path", b"GET  HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    Shape("an unknown method", b"BREW /live HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    Shape("a method in small letters", b"get /live HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    Shape("an unknown version", b"GET /live HTTP/9.9\r\nhost: localhost\r\n\r\n"),
    Shape("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Shape("a proxy's request", b"CONNECT example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    Shape("TLS where there is none", bytes.fromhex("16030102000100") + bytes(200)),
    Shape("random bytes", bytes(range(128, 256)) * 4),
    Shape("a star", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
    Shape("TRACE", b"TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
    Shape("a path of control characters", get(b"/%00%ff%0d%0ax-evil:%201"), 404),
    Shape("a way out of the folder", get(b"/v1/models/..%2f..%2fetc%2fpasswd"), 404),
)


class Wire:
    """A connection. All data that is read has to arrive in time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.hang_up()

    async def reply(self) -> Reply:
        async with asyncio.timeout(20):
            return await read_reply(self.reader)

    async def rest(self) -> bytes:
        """All data until the server closes the connection."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def hang_up(self) -> None:
        self.writer.transport.abort()


async def wire_to(stage: Stage, sent: bytes = b"", **more: Any) -> Wire:
    """Open a connection and send data."""
    wire = Wire(*await stage.connect(limit=1 << 20, **more))
    wire.writer.write(sent)
    return wire


async def until(condition: Callable[[], bool]) -> None:
    """Poll for a condition."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def connections(stage: Stage) -> list[BoundedHttpProtocol]:
    """The connections that the server holds open."""
    found = list(stage.running.server_state.connections)
    return [each for each in found if isinstance(each, BoundedHttpProtocol)]
