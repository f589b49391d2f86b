"""An upstream of a few lines for tests: it says what a test wants and keeps what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai import OpenAIOptions, OpenAIUpstream
from dovetail.net.http_client import Endpoint
from dovetail_model import Event, Message, Request, TextBlock, ToolSpec, Turn, fold

LOOK = ToolSpec("look_up", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})


@dataclass(frozen=True)
class Answer:
    """What the server says to one request. A stream without an end stays open."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    ends: bool = True


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


Reply = Callable[[Asked], Answer]


@dataclass
class Fake:
    """A running server. `hung_up` is set when a client went before the end."""

    endpoint: Endpoint
    asked: list[Asked] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    def bodies(self, path: str = "/v1/chat/completions") -> list[Any]:
        """What was asked there, probes for the API left out."""
        return [one.body for one in self.asked if one.path == path and one.body]


@asynccontextmanager
async def faked(reply: Reply) -> AsyncIterator[Fake]:
    """A server on a loopback port."""
    fake = Fake(Endpoint())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await _request(reader)
        fake.asked.append(asked)
        answer = reply(asked)
        head = {"content-type": answer.kind, "connection": "close", **dict(answer.headers)}
        if answer.ends:
            head["content-length"] = str(len(answer.body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode() + answer.body)
        await writer.drain()
        if not answer.ends and not await reader.read():
            fake.hung_up.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.endpoint = Endpoint(port=server.sockets[0].getsockname()[1])
    async with server:
        yield fake


async def _request(reader: asyncio.StreamReader) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return Asked(method, path, headers, json.loads(body) if body else None)


def chunks(*deltas: dict[str, Any], reason: str | None = "stop", done: bool = True) -> bytes:
    """A chat stream of these deltas."""
    frames = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if reason is not None:
        frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    text = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
    return (text + ("data: [DONE]\n\n" if done else "")).encode()


def stream(*deltas: dict[str, Any], **more: Any) -> Answer:
    return Answer(body=chunks(*deltas, **more), kind="text/event-stream")


def refusal(status: int, message: str, **more: Any) -> Answer:
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return Answer(status, body)


def upstream(endpoint: Endpoint, model: str = "m", **options: Any) -> OpenAIUpstream:
    return OpenAIUpstream(endpoint, RemoteModel(model), OpenAIOptions(**options))


def user(text: str, *more: Turn, **fields: Any) -> Request:
    """A request that a user begins."""
    return Request("m", turns=(Turn("user", (TextBlock(text),)), *more), **fields)


async def events(engine: OpenAIUpstream, request: Request) -> list[Event]:
    async with aclosing(engine.stream(request)) as batches:
        return [event async for batch in batches for event in batch]


async def answer(engine: OpenAIUpstream, request: Request) -> Message:
    return fold(await events(engine, request))
