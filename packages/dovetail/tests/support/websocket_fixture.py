"""A client of WebSockets, for servers on the stage: it sends what it is told and reads answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from http_fixture import NAME, Stage
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")

Event = dict[str, Any]


@asynccontextmanager
async def socket_to(
    stage: Stage, path: str = "/v1/responses", **headers: str
) -> AsyncIterator[ClientConnection]:
    """A connection. In header names _ stands for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"ws://127.0.0.1:{stage.port}{path}"
    async with connect(url, additional_headers=named, proxy=None, max_size=None) as socket:
        yield socket


async def refusal(stage: Stage, path: str = "/v1/responses", **headers: str) -> Any:
    """The answer to a request for a socket that is not granted."""
    with pytest.raises(InvalidStatus) as refused:
        async with socket_to(stage, path, **headers):
            pass
    response = refused.value.response
    return response.status_code, dict(response.headers.raw_items()), json.loads(response.body)


async def ask(socket: ClientConnection, said: str = "Hi", **more: Any) -> None:
    """Asks for a response, as clients do that keep nothing on the server."""
    body = {"model": NAME, "input": said, "store": False, **more}
    await socket.send(json.dumps({"type": "response.create", **body}))


async def event(socket: ClientConnection) -> Event:
    told = await socket.recv()
    assert isinstance(told, str)
    found: Event = json.loads(told)
    return found


async def answer(socket: ClientConnection) -> list[Event]:
    """The events of the next answer, its end included."""
    events = [await event(socket)]
    while events[-1]["type"] not in ENDS:
        events.append(await event(socket))
    return events


async def asked(socket: ClientConnection, said: str = "Hi", **more: Any) -> list[Event]:
    await ask(socket, said, **more)
    return await answer(socket)


async def until(condition: Callable[[], object]) -> None:
    """Returns when it is so. Server and client share one loop."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


async def closed(socket: ClientConnection) -> int | None:
    """The code that the server closes with."""
    with suppress(ConnectionClosed):
        async for _ in socket:
            pass
    return socket.close_code


def text_of(events: list[Event]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
