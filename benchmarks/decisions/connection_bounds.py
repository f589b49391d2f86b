"""How much does one connection buffer of what a hostile client sends, in uvicorn and in Dovetail?

`python -m benchmarks.decisions.connection_bounds`. A client sends up to 8 MB of headers, of
trailers, or of pipelined requests after one without a response; it never reads and never closes.
"""

import asyncio
import logging
import tracemalloc
from collections.abc import Iterator
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from benchmarks.decisions.transport import CountingTransport
from dovetail.net.http_protocol import BoundedHttpProtocol

SENT = 8 << 20  # bytes
PIECE = 32 << 10  # bytes
KINDS = ("headers", "trailers", "requests")


class ClosingTransport(CountingTransport):
    """A transport that records `close` and `pause_reading`."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = self.paused = False

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def hostile(kind: str, size: int) -> Iterator[bytes]:
    """Yield what the client sends, in chunks."""
    if kind == "headers":
        yield b"GET / HTTP/1.1\r\nhost: x\r\n"
    elif kind == "trailers":
        yield b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    request, value = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"y" * 40
    count = PIECE // 50
    for number in range(size // PIECE):
        if kind == "requests":
            yield request * (PIECE // len(request))
        else:
            yield b"".join(b"x%d-%d: %b\r\n" % (number, at, value) for at in range(count))


async def held(make: type[HttpToolsProtocol], kind: str, size: int) -> tuple[int, int]:
    """Return the bytes read from the client, and the bytes of memory that they occupy."""

    async def idle(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(idle, http=make, log_config=None, access_log=False)
    config.load()
    protocol, transport = make(config, ServerState(), {}), ClosingTransport()
    protocol.connection_made(transport)
    taken = 0
    tracemalloc.start()
    for piece in hostile(kind, size):
        if transport.closed or transport.paused:
            break
        protocol.data_received(piece)
        taken += len(piece)
    retained = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await asyncio.sleep(0)
    for task in protocol.tasks:
        task.cancel()
    return taken, retained


async def main(size: int = SENT) -> None:
    for kind in KINDS:
        for name, make in (("uvicorn", HttpToolsProtocol), ("ours", BoundedHttpProtocol)):
            taken, size_held = await held(make, kind, size)
            print(
                f"{kind:>9} {name:>8}: took {taken / 1e6:6.2f} MB, holds {size_held / 1e6:7.2f} MB"
            )


if __name__ == "__main__":
    logging.disable()
    uvloop.run(main())
