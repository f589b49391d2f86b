"""What does it cost to send one event over a WebSocket?

`python -m benchmarks.decisions.websocket_writer`: with the connection of the `websockets` library,
with uvicorn's `send`, and with our direct writer. Only the writing is measured: there is no socket.
"""

import asyncio
import logging
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState
from websockets.asyncio.server import Server, ServerConnection
from websockets.server import ServerProtocol

from benchmarks.decisions.transport import CountingTransport, measure_writes, print_table
from dovetail.http.websocket.protocol import BoundedWebSocketProtocol, DirectWebSocketWriter

DATA = b'{"type":"response.output_text.delta","delta":" word","sequence_number":17}'
FRAME = b"event: response.output_text.delta\ndata: " + DATA + b"\n\n"
EVENTS = 10_000
REQUEST = (
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def open_ours() -> BoundedWebSocketProtocol:
    async def idle(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(
        idle, ws=BoundedWebSocketProtocol, ws_per_message_deflate=False, log_config=None
    )
    config.load()
    protocol = BoundedWebSocketProtocol(config, ServerState(), {})
    protocol.connection_made(CountingTransport())
    protocol.data_received(REQUEST)
    return protocol


async def open_theirs() -> ServerConnection:
    async def handler(connection: ServerConnection) -> None: ...

    protocol = ServerProtocol()
    connection = ServerConnection(protocol, Server(handler), ping_interval=None)
    connection.connection_made(CountingTransport())
    connection.data_received(REQUEST)
    connection.response = protocol.accept(connection.request)  # type: ignore[arg-type]
    protocol.send_response(connection.response)
    connection.send_data()
    return connection


async def main(count: int = EVENTS) -> None:
    ours, theirs = open_ours(), await open_theirs()
    await ours.send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    writer = DirectWebSocketWriter(ours, b"")
    text = DATA.decode()

    async def library(count: int) -> None:
        for _ in range(count):
            await theirs.send(text)

    async def send(count: int) -> None:
        for _ in range(count):
            await ours.send({"type": "websocket.send", "text": text, "bytes": None})

    async def write(count: int) -> None:
        for _ in range(count):
            if not writer.write(FRAME):
                await writer.drain()

    ways = {"websockets' connection": library, "uvicorn's send": send, "direct writer": write}
    print_table(await measure_writes(ways, count), "event")
    for task in ours.tasks:
        task.cancel()


if __name__ == "__main__":
    logging.disable()
    uvloop.run(main())
