"""A fake upstream that responds as a test defines and records its requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai import OpenAIOptions, OpenAIUpstream
from dovetail.net.http_client import Endpoint
from dovetail_model import Event, Message, Request, ResponseFields, TextBlock, ToolSpec, Turn, fold

LOOK = ToolSpec("look_up", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})


@dataclass(frozen=True)
class FakeResponse:
    """The response to one request. A stream without an end stays open.

    `later`: The rest of the body, which is sent in a chunk of its own.
    """

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    ends: bool = True
    later: bytes = b""


@dataclass
class FakeRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


Responder = Callable[[FakeRequest], FakeResponse]


@dataclass
class FakeUpstream:
    """A running server. `disconnected` is set when a client disconnects before the end."""

    endpoint: Endpoint
    respond: Responder
    requests: list[FakeRequest] = field(default_factory=list)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    def bodies(self, path: str = "/v1/chat/completions") -> list[Any]:
        """Return the bodies of requests to a path, without probes for the API."""
        return [one.body for one in self.requests if one.path == path and one.body]


@asynccontextmanager
async def fake_upstream(respond: Responder) -> AsyncIterator[FakeUpstream]:
    """Run a server on a loopback port."""
    fake = FakeUpstream(Endpoint(), respond)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _request(reader)
        fake.requests.append(request)
        response = fake.respond(request)
        head = {"content-type": response.kind, "connection": "close", **dict(response.headers)}
        if response.ends:
            head["content-length"] = str(len(response.body) + len(response.later))
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"HTTP/1.1 {response.status} X\r\n{lines}\r\n".encode() + response.body)
        await writer.drain()
        if response.later:
            await asyncio.sleep(0.05)
            writer.write(response.later)
            await writer.drain()
        if not response.ends and not await reader.read():
            fake.disconnected.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.endpoint = Endpoint(port=server.sockets[0].getsockname()[1])
    async with server:
        yield fake


async def _request(reader: asyncio.StreamReader) -> FakeRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return FakeRequest(method, path, headers, json.loads(body) if body else None)


def chunks(*deltas: dict[str, Any], reason: str | None = "stop", done: bool = True) -> bytes:
    """Return a chat stream of these deltas."""
    frames = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if reason is not None:
        frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    text = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def stream(*deltas: dict[str, Any], **more: Any) -> FakeResponse:
    return FakeResponse(body=chunks(*deltas, **more), kind="text/event-stream")


def rejection(status: int, message: str, **more: Any) -> FakeResponse:
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return FakeResponse(status, body)


def upstream(endpoint: Endpoint, model: str = "m", **options: Any) -> OpenAIUpstream:
    return OpenAIUpstream(endpoint, RemoteModel(model), OpenAIOptions(**options))


def user(text: str, *more: Turn, **fields: Any) -> Request:
    """Create a request that begins with a user turn."""
    return Request("m", turns=(Turn("user", (TextBlock(text),)), *more), **fields)


async def events(engine: OpenAIUpstream, request: Request) -> list[Event]:
    async with aclosing(engine.stream(request)) as batches:
        found = [event async for batch in batches for event in batch]
    return [event for event in found if not isinstance(event, ResponseFields)]


async def fetch_message(engine: OpenAIUpstream, request: Request) -> Message:
    return fold(await events(engine, request))
