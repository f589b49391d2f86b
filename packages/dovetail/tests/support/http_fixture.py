"""A complete server on a loopback port, with a tiny model and an engine that tests control.

The model needs no download: its tokens are bytes, its template is ChatML with reasoning and tools.
Server and clients share one event loop, so tests wait for events and never for time.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
import uvloop
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.http.app import App
from dovetail.http.options import HttpOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.net.http_protocol import DEFAULT_TIMEOUTS, ConnectionTimeouts
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import STREAM_START_TIMEOUT_SECONDS, ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.server.http_server import create_server
from dovetail.server_tools.runner import ServerTools
from dovetail.telemetry.record import RequestRecorder
from dovetail.usage.writer import UsageWriter

NAME = "some-org/some-model"
ALIAS = "claude-haiku-4-5-20251001"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Oslo"}}\n</tool_call>'
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

THINKING_TEMPLATE = _TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")

Plan = Callable[[EngineRequest], AsyncGenerator[TokenDelta]]


@cache
def tiny_model(template: str = _TEMPLATE) -> Model:
    """The model, loaded from a folder with Hugging Face's layout."""
    alphabet = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    with TemporaryDirectory() as folder:
        path = Path(folder)
        tokenizer.save(str(path / "tokenizer.json"))
        config = {"eos_token": "<|im_end|>", "chat_template": template}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        (path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
        return load_model(path, tool_parser="hermes", reasoning_parser="qwen3")


class StageEngine:
    """Runs the plan of a test, and records requests and how they ended."""

    name = "stage"

    def __init__(self, model: Model) -> None:
        self.capabilities = EngineCapabilities(constraints=("gbnf",), logprobs=True)
        self.tokenizer = model.tokenizer
        self.stop_id = self.tokenizer.controls["<|im_end|>"]
        self.requests: list[EngineRequest] = []
        self.deltas_sent = 0  # deltas that were pushed
        self.running = 0
        self.began = asyncio.Event()
        self.closed = asyncio.Event()
        self.started = self.stopped = False
        self.state = EngineHealth(True)
        self.plan: Plan = self.script("Hello.")

    def script(self, *texts: str, step: int = 3, cached: int = 0) -> Plan:
        """A plan with one output per request; the last one is repeated."""

        async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
            text = texts[min(len(self.requests), len(texts)) - 1]
            ids = [*self.tokenizer.encode(text), self.stop_id]
            for at in range(0, len(ids), step):
                last = at + step >= len(ids)
                yield TokenDelta(
                    ids[at : at + step],
                    finish="stop" if last else None,
                    cached=None if at else cached,
                )

        return play

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        self.stopped = True

    async def health(self) -> EngineHealth:
        return self.state

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        self.running += 1
        self.began.set()
        deltas = self.plan(request)
        try:
            async for delta in deltas:
                self.deltas_sent += 1
                if not sink.push(delta) and not await sink.drain():
                    return
        finally:
            await deltas.aclose()
            self.running -= 1
            self.closed.set()


class _RequestLines(logging.Handler):
    """Collects the log lines of requests, for tests to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(vars(record)["fields"])


@dataclass
class Stage:
    """A running server.

    ended: The log line of each finished request.
    """

    app: App
    engine: StageEngine
    port: int
    running: uvicorn.Server
    ended: "asyncio.Queue[dict[str, Any]]"
    clients: list[AsyncAnthropic | AsyncOpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def anthropic(self, key: str = "none", **more: Any) -> AsyncAnthropic:
        client = AsyncAnthropic(base_url=self.url, api_key=key, max_retries=0, **more)
        self.clients.append(client)
        return client

    def openai(self, key: str = "none", **more: Any) -> AsyncOpenAI:
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **more)
        self.clients.append(client)
        return client

    async def request(
        self, method: str, path: str, body: bytes | dict[str, Any] = b"", **headers: str
    ) -> "Reply":
        """Send one request over a separate connection. In header names, _ stands for -."""
        reader, writer = await self.connect()
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(head(method, path, len(sent), headers) + sent)
        try:
            return await read_reply(reader, method)
        finally:
            writer.close()
            await writer.wait_closed()

    async def connect(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, **more)

    def metric(self, name: str, **labels: str) -> float:
        return self.app.metrics.registry.get_sample_value(name, labels) or 0.0


@dataclass
class Reply:
    """A response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def head(method: str, path: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    lines = {"host": "localhost", "content-length": str(length), "connection": "close", **named}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode()


async def read_reply(reader: asyncio.StreamReader, method: str = "GET") -> Reply:
    """Read a complete response."""
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = b""
    if method != "HEAD":
        if headers.get("transfer-encoding") == "chunked":
            body = await _chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Reply(int(first.split(" ")[1]), headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


def service(
    *,
    max_context: int | None = None,
    count: int = 1,
    template: str = _TEMPLATE,
    start_timeout_seconds: float = STREAM_START_TIMEOUT_SECONDS,
    server_tools: ServerTools | None = None,
    ledger: Ledger | None = None,
) -> tuple[ModelRegistry, StageEngine]:
    """A registry of one model (or several under numbered names), all on one engine."""
    model = tiny_model(template)
    engine = StageEngine(model)
    ledger = ledger or Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(model, ledger, Keyring([bytes(32)]))
    entries = [
        TokenModel(
            names=(NAME, "second-name") if not at else (f"model-{at}",),
            model=model,
            preparer=preparer,
            engine=ReplicaPool([engine]),
            max_context=max_context,
            created=1_700_000_000.0,
            start_timeout_seconds=start_timeout_seconds,
        )
        for at in range(count)
    ]
    aliases = {ALIAS: NAME, "claude-*": NAME}
    return ModelRegistry(entries, aliases, server_tools=server_tools), engine


@asynccontextmanager
async def serving(  # noqa: PLR0913 - each is what some test needs
    options: HttpOptions | None = None,
    *,
    max_context: int | None = None,
    count: int = 1,
    template: str = _TEMPLATE,
    send_buffer: int | None = None,
    registry: ModelRegistry | None = None,
    recorders: Sequence[RequestRecorder] = (),
    timeouts: ConnectionTimeouts = DEFAULT_TIMEOUTS,
    start_timeout_seconds: float = STREAM_START_TIMEOUT_SECONDS,
    server_tools: ServerTools | None = None,
    ledger: Ledger | None = None,
    usage: UsageWriter | None = None,
) -> AsyncIterator[Stage]:
    """Run a server during the block.

    It serves `registry`, else the tiny model.
    """
    default_registry, engine = service(
        max_context=max_context,
        count=count,
        template=template,
        start_timeout_seconds=start_timeout_seconds,
        server_tools=server_tools,
        ledger=ledger,
    )
    app = App(registry or default_registry, options, recorders=recorders, usage=usage)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    handler = _RequestLines()
    logger = logging.getLogger("dovetail.request")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    running = create_server(
        app,
        drain=app.draining,
        max_message_bytes=app.options.max_body_bytes if app.options.websockets else None,
        metrics=app.metrics,
        timeouts=timeouts,
        websocket_options=app.options.websocket_options,
    )
    task = asyncio.create_task(running.serve([listener]))
    stage = Stage(app, engine, listener.getsockname()[1], running, handler.lines)
    try:
        yield stage
    finally:
        logger.removeHandler(handler)
        for client in stage.clients:
            await client.close()
        running.should_exit = True
        await task


def run(scene: Callable[[], Awaitable[None]]) -> None:
    """Run a scene on the event loop of the product."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def play() -> None:
            async with asyncio.timeout(60):
                await scene()

        runner.run(play())
