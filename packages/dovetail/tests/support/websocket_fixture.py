"""A WebSocket client for the servers of http_fixture."""

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
    b"GET /v1/responses HTTP/1.1\r\nhost: [::1]\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")

Event = dict[str, Any]


@asynccontextmanager
async def socket_to(
    stage: Stage, path: str = "/v1/responses", **headers: str
) -> AsyncIterator[ClientConnection]:
    """Open a connection. In header names, _ stands for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"ws://127.0.0.1:{stage.port}{path}"
    async with connect(url, additional_headers=named, proxy=None, max_size=None) as socket:
        yield socket


async def refusal(stage: Stage, path: str = "/v1/responses", **headers: str) -> Any:
    """Return the response to a rejected handshake."""
    with pytest.raises(InvalidStatus) as refused:
        async with socket_to(stage, path, **headers):
            pass
    response = refused.value.response
    return response.status_code, dict(response.headers.raw_items()), json.loads(response.body)


async def send_request(
    socket: ClientConnection, content: str | list[dict[str, Any]] = "Hi", **more: Any
) -> None:
    """Request a response that the server does not store."""
    body = {"model": NAME, "input": content, "store": False, **more}
    await socket.send(json.dumps({"type": "response.create", **body}))


async def event(socket: ClientConnection) -> Event:
    message = await socket.recv()
    assert isinstance(message, str)
    decoded: Event = json.loads(message)
    return decoded


async def read_response(socket: ClientConnection) -> list[Event]:
    """Read the events of the next response, including its end."""
    events = [await event(socket)]
    while events[-1]["type"] not in ENDS:
        events.append(await event(socket))
    return events


async def request_response(
    socket: ClientConnection, content: str | list[dict[str, Any]] = "Hi", **more: Any
) -> list[Event]:
    await send_request(socket, content, **more)
    return await read_response(socket)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition. Server and client share one loop."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


async def closed(socket: ClientConnection) -> int | None:
    """Return the code with which the server closes the connection."""
    with suppress(ConnectionClosed):
        async for _ in socket:
            pass
    return socket.close_code


def text_of(events: list[Event]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
