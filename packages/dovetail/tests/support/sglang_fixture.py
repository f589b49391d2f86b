"""A fake SGLang server without a model, for tests of the adapter.

Its frames, paths and errors are those in the sources of SGLang 0.5.23. test_mocker.py checks the
output of a real implementation.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from scripted_fixture import END, TOKENIZER, ids

from dovetail.engines.engine import EngineHealth, EngineRequest, TokenDelta, TokenSink
from dovetail.engines.sglang import SglangEngine, SglangOptions
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import Endpoint

Json = dict[str, Any]

MODEL_INFO: Json = {"model_path": "/models/tiny", "tokenizer_path": "/models/words"}
MODEL_INFO |= {"served_model_name": "tiny", "is_generation": True}
SERVER_INFO: Json = {
    "version": "0.5.23",
    "context_length": None,
    "max_req_input_len": 8186,
    "grammar_backend": "xgrammar",
    "enable_priority_scheduling": False,
    "schedule_low_priority_values_first": False,
    "incremental_streaming_output": False,
}
MODELS: Json = {"object": "list", "data": [{"id": "tiny", "root": "tiny", "max_model_len": 8192}]}
PATHS: dict[str, Json] = {
    "/ready": {},
    "/model_info": MODEL_INFO,
    "/server_info": SERVER_INFO,
    "/v1/models": MODELS,
}


def meta(count: int, prompt: int = 2, finish: Json | None = None, **more: Any) -> Json:
    """Return the `meta_info` of a frame."""
    counts = {"prompt_tokens": prompt, "completion_tokens": count}
    return {"id": "r", "finish_reason": finish, **counts, **more}


def frames(
    parts: Sequence[Sequence[int]], finish: Json, *, repeats: bool, prompt: int = 2, cached: int = 0
) -> Iterator[Json]:
    """Return a response in these parts: each frame has all ids so far, or only the new ones."""
    so_far: list[int] = []
    for number, part in enumerate(parts, 1):
        so_far += part
        meta_info = meta(len(so_far), prompt, finish if number == len(parts) else None)
        text = TOKENIZER.decode(so_far if repeats else list(part))
        output_ids = list(so_far) if repeats else list(part)
        yield {
            "text": text,
            "output_ids": output_ids,
            "meta_info": {**meta_info, "cached_tokens": cached},
        }


def event(frame: Json) -> bytes:
    return b"data: " + msgspec.json.encode(frame) + b"\n\n"


@dataclass
class FakeSglang:
    """The responses of the server, and the requests that it received."""

    output_ids: Sequence[int] = (*ids("a" * 1000), END)
    repeats: bool = True
    paths: Mapping[str, Json] = field(default_factory=lambda: dict(PATHS))
    status: int = 200
    rejection: Json = field(default_factory=dict)
    abort_status: int = 200
    #: After this many tokens it sends no more data until an abort.
    halt: int | None = None
    script: Iterable[bytes] | None = None
    requests: list[Json] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    closed_sessions: list[str] = field(default_factory=list)
    close_status: int = 200
    headers: list[str] = field(default_factory=list)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    abort_received: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: set["asyncio.Task[None] | None"] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        with suppress(ConnectionError):
            await self._exchange(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def close(self) -> None:
        """Wait for open connections."""
        self.abort_received.set()
        await asyncio.gather(*(task for task in self._serving if task is not None))

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.headers.append(head)
        length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
        content = await reader.readexactly(length)
        method, path, _ = head.split(" ", 2)
        if (method, path) == ("POST", "/generate"):
            await self._generate(msgspec.json.decode(content), reader, writer)
        elif (method, path) == ("POST", "/abort_request"):
            self._abort(msgspec.json.decode(content)["rid"])
            _respond(writer, self.abort_status, {})
        elif (method, path) == ("POST", "/close_session"):
            self.closed_sessions.append(msgspec.json.decode(content)["session_id"])
            _respond(writer, self.close_status, {})
        else:
            _respond(writer, 200 if path in self.paths else 404, self.paths.get(path, {}))

    def _abort(self, rid: str) -> None:
        self.aborted.append(rid)
        self.abort_received.set()

    async def _generate(
        self, request: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(request)
        if self.status != 200:
            _respond(writer, self.status, self.rejection)
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"connection: close\r\n\r\n")
        for number, piece in enumerate(self.script or self._frames(request), 1):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
            if self.halt == number:
                disconnect = asyncio.ensure_future(reader.read())
                stopped = asyncio.ensure_future(self.abort_received.wait())
                await asyncio.wait({disconnect, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if disconnect.done():
                    disconnect.exception()  # a reset is a way to disconnect
                    self.disconnected.set()
                disconnect.cancel()
                stopped.cancel()
                writer.write(event({"meta_info": meta(0, finish={"type": "abort"})}))
                return

    def _frames(self, request: Json) -> Iterator[bytes]:
        params = request["sampling_params"]
        limit = params["max_new_tokens"]
        output_ids = list(self.output_ids[:limit])
        stopped = bool(output_ids) and output_ids[-1] in params.get("stop_token_ids", ())
        finish = {"type": "stop", "matched": output_ids[-1]} if stopped else {"type": "length"}
        prompt = len(request["input_ids"])
        parts = [[id] for id in output_ids]
        yield from map(event, frames(parts, finish, repeats=self.repeats, prompt=prompt, cached=1))
        yield b"data: [DONE]\n\n"


def _respond(writer: asyncio.StreamWriter, status: int, content: Json) -> None:
    body = msgspec.json.encode(content)
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)


@asynccontextmanager
async def listening(fake: FakeSglang) -> AsyncIterator[Endpoint]:
    """Run the server and yield its endpoint."""
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Endpoint(host, port, headers={"authorization": "Bearer k"})
    finally:
        server.close()
        await fake.close()


@asynccontextmanager
async def running(fake: FakeSglang, **options: Any) -> AsyncIterator[SglangEngine]:
    """Start an engine with this server and yield it."""
    async with listening(fake) as endpoint:
        engine = SglangEngine(endpoint, TOKENIZER, options=SglangOptions(**options))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


class EngineWithFakeSglang:
    """The adapter together with a fake server, as one engine."""

    name = "sglang"

    def __init__(self) -> None:
        self._fake = FakeSglang()
        self._server: asyncio.Server | None = None
        self._engine = SglangEngine(Endpoint(port=1), TOKENIZER)
        self.capabilities = self._engine.capabilities

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._fake.serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self._engine = SglangEngine(Endpoint(host, port), TOKENIZER)
        await self._engine.start()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        await self._engine.generate(request, sink)

    async def health(self) -> EngineHealth:
        return await self._engine.health()

    async def stop(self) -> None:
        await self._engine.stop()
        if self._server is not None:
            self._server.close()
            await self._fake.close()


def make_request(max_tokens: int = 5000, **more: Any) -> EngineRequest:
    """Create a request with two prompt tokens."""
    stops = {"stop_ids": frozenset({END})}
    return EngineRequest("r", array("I", [1, 2]), max_tokens, **{**stops, **more})


async def generate(engine: SglangEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]
