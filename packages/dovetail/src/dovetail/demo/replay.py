"""Replay a scripted agent session on a real server, as a client of its Messages API."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console

from dovetail.demo.display import DemoDisplay
from dovetail.demo.session import build_demo_entry
from dovetail.engines.scripted.engine import RecordedGeneration
from dovetail.http.app import App
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.server.http_server import create_server, run_server, wait_until_started
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    EngineUnavailable,
    Event,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
)
from dovetail_protocols import SseReader

TURNS = 3
TOKENS_PER_SECOND = 320.0  # a token is a byte: the demo takes about ten seconds
TOOL_RESULTS = {
    "read_file": "1  def total(self):\n2      return max(prices)",
    "write_file": "written",
    "edit_file": "edited",
}
TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
HEADERS = {
    "host": "localhost",
    "content-type": "application/json",
    "connection": "close",
    "user-agent": "dovetail-demo",
    "x-claude-code-session-id": "demo",
}
Json = dict[str, Any]


async def run_demo(
    console: Console,
    *,
    fast: bool = False,
    wait: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Run the session. Returns True if each prompt contains the previous turn token for token.

    `wait`: awaited at the end, before the server and its page stop.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder) / "generations.jsonl"
        async with _serve_demo(0.0 if fast else TOKENS_PER_SECOND, log) as port:
            console.print(f"The web UI shows this session: [bold]http://127.0.0.1:{port}/ui[/]")
            console.file.flush()  # the page is of use only while the session runs
            await _run_session(console, port, log)
            exact = all(map(_is_exact, *zip(*pairwise(_read_log(log)), strict=True)))
            verdict = "yes" if exact else "NO"
            console.print(
                f"\nEvery turn is in the next prompt, token for token: [bold]{verdict}[/]"
            )
            if wait is not None:
                await wait()
    return exact


@asynccontextmanager
async def _serve_demo(rate: float, log: Path) -> AsyncIterator[int]:
    """Serve the demo on a free port of this machine during the block."""
    app = App(ModelRegistry([build_demo_entry(rate, log)]), HttpOptions(ui=True))
    listener = socket.create_server(("127.0.0.1", 0))
    server = create_server(app, drain=app.draining, metrics=app.metrics)
    task = asyncio.create_task(run_server(server, [listener]))
    if not await wait_until_started(server, task):
        raise EngineUnavailable(app.startup_error or "the server of the demo did not start")
    try:
        yield listener.getsockname()[1]
    finally:
        app.draining.start()
        server.should_exit = True
        await task


async def _run_session(console: Console, port: int, log: Path) -> None:
    history: list[Json] = [{"role": "user", "content": "Fix the empty basket."}]
    for number in range(TURNS):
        console.rule(f"request {number + 1}", style="dim")
        response = _Response(DemoDisplay(console))
        await _send(port, history, response)
        _print_turn_summary(console, response.usage, _read_log(log))
        history += response.next_messages()


async def _send(port: int, history: list[Json], response: "_Response") -> None:
    """Send one request and pass the frames of its stream to the response."""
    tools = [{"name": name, "input_schema": TOOL_SCHEMA} for name in TOOL_RESULTS]
    content = {"model": "demo", "max_tokens": 4096, "stream": True}
    body = json.dumps({**content, "messages": history, "tools": tools}).encode()
    lines = [f"{name}: {value}" for name, value in HEADERS.items()]
    head = "\r\n".join(
        ("POST /v1/messages HTTP/1.0", *lines, f"content-length: {len(body)}", "", "")
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        while data := await reader.read(65_536):  # HTTP/1.0: the body ends with the connection
            response.feed(data)
    finally:
        writer.close()


class _Response:
    """The stream of one response: shows its events, and collects its blocks and usage."""

    def __init__(self, display: DemoDisplay) -> None:
        self._display = display
        self._reader = SseReader()
        self._blocks: list[Json] = []
        self.usage: Json = {}

    def feed(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if frame.data:
                self._add(json.loads(frame.data))

    def next_messages(self) -> list[Json]:
        """Return the messages that a client sends back: the blocks in order, and the results."""
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": TOOL_RESULTS[block["name"]],
            }
            for block in self._blocks
            if block["type"] == "tool_use"
        ]
        messages: list[Json] = [{"role": "assistant", "content": self._blocks}]
        return [*messages, {"role": "user", "content": results}] if results else messages

    def _add(self, event: Json) -> None:
        match event["type"]:
            case "message_start":
                self.usage |= event["message"]["usage"]
            case "message_delta":
                self.usage |= event["usage"]
            case "content_block_start":
                self._blocks.append({**event["content_block"]})
                if event["content_block"]["type"] == "tool_use":
                    self._blocks[-1]["input"] = ""
                    self._show(CallOpen(event["index"], event["content_block"]["name"]))
            case "content_block_delta":
                self._add_delta(event["index"], event["delta"])
            case "content_block_stop":
                self._end_block(event["index"])
            case "message_stop":
                self._display.close()

    def _add_delta(self, index: int, delta: Json) -> None:
        block = self._blocks[-1]
        match delta["type"]:
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                self._show(ReasoningDelta(delta["thinking"]))
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "text_delta":
                block["text"] += delta["text"]
                self._show(TextDelta(delta["text"]))
            case "input_json_delta":
                block["input"] += delta["partial_json"]
                self._show(CallArgs(index, delta["partial_json"]))

    def _end_block(self, index: int) -> None:
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
            self._show(CallClose(index))
        else:
            self._show(SpanEnd("reasoning" if block["type"] == "thinking" else "text"))

    def _show(self, event: Event) -> None:
        self._display.show(event)


def _read_log(log: Path) -> list[RecordedGeneration]:
    """Return the prompts and outputs so far, as the engine had them."""
    lines = log.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]


def _is_exact(before: RecordedGeneration, after: RecordedGeneration) -> bool:
    """Return whether a prompt continues with exactly the tokens of the turn before it."""
    previous = before.prompt + before.output
    return after.prompt[: len(previous)] == previous


def _print_turn_summary(console: Console, usage: Json, log: list[RecordedGeneration]) -> None:
    cached = usage.get("cache_read_input_tokens", 0)
    console.print(
        f"[dim]{len(log[-1].prompt)} prompt tokens, {cached} of them cached by the engine, "
        f"{usage['output_tokens']} output tokens[/]"
    )
    if len(log) > 1:
        previous = len(log[-2].prompt) + len(log[-2].output)
        verdict = "[green]exact[/]" if _is_exact(log[-2], log[-1]) else "[red]not exact[/]"
        console.print(f"[dim]previous prompt and turn, {previous} tokens:[/] {verdict}")
