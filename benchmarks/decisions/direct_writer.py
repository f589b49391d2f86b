"""What does it cost to write one streamed chunk: with ASGI's `send`, and with the direct writer?

`python -m benchmarks.decisions.direct_writer`. Engines push tokens from a callback, which cannot
await `send`: plain ASGI needs a queue and a task. Each chunk arrives in its own iteration of the
event loop, whose cost is subtracted. Only the writing is measured: there is no socket.
"""

import asyncio
import logging
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from benchmarks.decisions.transport import CountingTransport, Write, measure_writes, print_table
from dovetail.net.response_writer import DirectWriter

CHUNK = b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" word"}}\n\n'
CHUNKS = 20_000
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


async def idle(scope: Any, receive: Any, send: Any) -> None:
    """Return an application that leaves its response to the measurement."""
    await asyncio.Event().wait()


async def turn(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def through_send(chunks: "asyncio.Queue[bytes]") -> Write:
    async def write(count: int) -> None:
        for _ in range(count):
            chunks.put_nowait(CHUNK)
            await asyncio.sleep(0)

    return write


async def forward(cycle: RequestResponseCycle, chunks: "asyncio.Queue[bytes]") -> None:
    while True:
        body = await chunks.get()
        await cycle.send({"type": "http.response.body", "body": body, "more_body": True})


def through_writer(writer: DirectWriter) -> Write:
    async def write(count: int) -> None:
        for _ in range(count):
            if not writer.write(CHUNK):
                await writer.drain()
            await asyncio.sleep(0)

    return write


async def main(count: int = CHUNKS) -> None:
    config = uvicorn.Config(idle, http=HttpToolsProtocol, log_config=None, access_log=False)
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {})
    protocol.connection_made(CountingTransport())
    protocol.data_received(REQUEST)
    cycle = protocol.cycle
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    ways = {
        "turn": turn,
        "queue, task and ASGI send": through_send(chunks),
        "direct writer": through_writer(DirectWriter(cycle)),
    }
    forwarding = asyncio.create_task(forward(cycle, chunks))
    found = await measure_writes(ways, count)
    us, calls = found.pop("turn")
    print_table({name: (one - us, more - calls) for name, (one, more) in found.items()}, "chunk")
    for task in (forwarding, *protocol.tasks):
        task.cancel()


if __name__ == "__main__":
    logging.disable()
    uvloop.run(main())
