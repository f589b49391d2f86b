"""A real server for a demo, and a client of its Messages API that shows each response."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console

from dovetail.demo.display import DemoDisplay
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

HEADERS = {
    "host": "localhost",
    "content-type": "application/json",
    "connection": "close",
    "user-agent": "dovetail-demo",
    "x-claude-code-session-id": "demo",
    "x-dovetail-debug": "prefix",
}
Json = dict[str, Any]
#: Runs the tool call of a block of the type `tool_use`, and returns its result.
ToolRunner = Callable[[Json], str]


@asynccontextmanager
async def serve_demo(registry: ModelRegistry) -> AsyncIterator[int]:
    """Serve the models on a free port of this machine during the block."""
    app = App(registry, HttpOptions(ui=True))
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


def print_ui_address(console: Console, port: int) -> None:
    """Print the address at once: the page is of use only while the session runs."""
    console.print(f"The web UI shows this session: [bold]http://127.0.0.1:{port}/ui[/]")
    console.file.flush()


def print_verdict(console: Console, exact: bool) -> None:
    verdict = "yes" if exact else "NO"
    console.print(f"\nEvery turn is in the next prompt, token for token: [bold]{verdict}[/]")


async def send(port: int, body: Json, response: "DemoResponse") -> None:
    """Send one request and pass its stream to the response."""
    data = json.dumps({**body, "stream": True}).encode()
    lines = [f"{name}: {value}" for name, value in HEADERS.items()]
    head = "\r\n".join(
        ("POST /v1/messages HTTP/1.0", *lines, f"content-length: {len(data)}", "", "")
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + data)
        received = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        if received[0].split()[1] != "200":
            raise EngineUnavailable(f"the server responded with {received[0]!r}")
        fields = (line.partition(":") for line in received[1:] if line)
        response.headers = {name.lower(): value.strip() for name, _, value in fields}
        while chunk := await reader.read(65_536):  # HTTP/1.0: the body ends with the connection
            response.feed(chunk)
    finally:
        writer.close()


class DemoResponse:
    """The stream of one response: shows its events, and collects its headers, blocks and usage."""

    def __init__(self, display: DemoDisplay) -> None:
        self._display = display
        self._reader = SseReader()
        self._blocks: list[Json] = []
        self.headers: dict[str, str] = {}
        self.usage: Json = {}

    def feed(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if frame.data:
                self._add(json.loads(frame.data))

    def next_messages(self, run_tool: ToolRunner) -> list[Json]:
        """Return the messages that a client sends back: the blocks in order, and the results."""
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": run_tool(block)}
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
            case "error":
                raise EngineUnavailable(event["error"]["message"])

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
