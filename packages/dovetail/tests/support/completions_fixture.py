"""Servers of the completions protocol in this process: the scripted engine's, and fake ones."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from scripted_fixture import END, RETURN, TOKENIZER, engine

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.engine import EngineCapabilities, EngineHealth, EngineRequest, TokenSink
from dovetail.engines.registry import EngineSetup, create_engine, discover_model
from dovetail.engines.scripted import ScriptedEngine
from dovetail.net.http_client import Endpoint
from dovetail.net.listener import uvicorn_config

MODEL = "org/model"
Responder = Callable[[str, bytes], Awaitable[list[bytes]]]


@asynccontextmanager
async def scripted_server(
    script: str, *, key: str | None = None, max_model_len: int = 100_000, **options: Any
) -> AsyncIterator[tuple[ScriptedEngine, Endpoint]]:
    """Run the scripted engine behind a real socket and yield both."""
    scripted = engine(script, (END, RETURN), **options)
    model = CompletionModel((MODEL, "alias"), TOKENIZER, (END, RETURN), max_model_len)
    app = CompletionsServer(scripted, model, api_key=key, stream_batches=scripted.generate_batches)
    server = uvicorn.Server(uvicorn_config(app))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield scripted, Endpoint("127.0.0.1", listener.getsockname()[1])
    finally:
        server.should_exit = True
        await scripted.stop()
        await serving


@asynccontextmanager
async def fake_server(respond: Responder) -> AsyncIterator[Endpoint]:
    """Run a server that sends the bytes that `respond` returns for a path and a body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
            path, body = head.split(" ")[1], await reader.readexactly(length)
            for piece in await respond(path, body):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Endpoint("127.0.0.1", running.sockets[0].getsockname()[1])
    finally:
        running.close()


def status(code: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (code, len(body), body)


def stream(*payloads: bytes) -> bytes:
    """Return a complete response of these frames."""
    return open_stream(*payloads) + b"0\r\n\r\n"


def open_stream(*payloads: bytes) -> bytes:
    """Return a response that has not ended."""
    frames = [b"data: %b\n\n" % payload for payload in payloads]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


class EngineWithServer:
    """An engine together with its server, as one object."""

    capabilities = EngineCapabilities()

    def __init__(self, name: str, script: str) -> None:
        self.name = name
        self._script = script
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        _, endpoint = await self._stack.enter_async_context(scripted_server(self._script))
        remote = await discover_model(self.name, endpoint)
        setup = EngineSetup(TOKENIZER, endpoint=endpoint, remote=remote, options={"probe": False})
        self._engine = create_engine(self.name, setup)
        await self._engine.start()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        await self._engine.generate(request, sink)

    async def health(self) -> EngineHealth:
        return await self._engine.health()

    async def stop(self) -> None:
        await self._engine.stop()
        await self._stack.aclose()
