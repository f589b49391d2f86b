"""A server whose responses to the engines' HTTP client a test defines byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts
from dovetail_model import DovetailError, EngineUnavailable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
POST = ClientRequest("POST", "/x", b"{}")
GET = ClientRequest("GET", "/x", timeouts=Timeouts(connect=30.0, read=30.0))
#: A loaded machine must deliver a response in this time.
SHORT = ClientRequest("POST", "/x", b"{}", timeouts=Timeouts(connect=30.0, read=0.5))


@asynccontextmanager
async def server(handle: Handler) -> AsyncIterator[Endpoint]:
    """A server with one handler. It closes each connection when the handler returns."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = running.sockets[0].getsockname()
        yield Endpoint(host, port, headers={"authorization": "Bearer k"})
    finally:
        running.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
    return head, await reader.readexactly(length)


def responding_with(*pieces: bytes) -> Handler:
    """Return a handler that reads the request, then writes the pieces one by one."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handle


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FAULTS: list[tuple[str, list[bytes], type[DovetailError], str]] = [
    ("nothing", [], EngineUnavailable, "incomplete response"),
    ("half a head", [b"HTTP/1.1 200"], EngineUnavailable, "incomplete response"),
    ("not http", [b"garbage\r\n\r\n"], EngineUnavailable, "invalid response"),
    (
        "short",
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"],
        EngineUnavailable,
        "incomplete",
    ),
    ("half a chunk", [CHUNKED, b"5\r\nab"], EngineUnavailable, "incomplete response"),
    ("no last chunk", [CHUNKED, chunk(b"ab")], EngineUnavailable, "incomplete response"),
    ("bad chunk", [CHUNKED, b"zz\r\n"], EngineUnavailable, "invalid response"),
    ("endless head", [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60000], EngineUnavailable, "head"),
    ("upgrade", [b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n"], EngineUnavailable, "invalid response"),
]
