"""Fixtures for eval: scripted agents, and a server like vLLM with chat and token prompts."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from watch_fixture import PLAIN

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, parse_script
from dovetail.eval.tasks import TASKS
from dovetail.http.app import App
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import load_model
from dovetail.net.exchange import Message, Receive, Scope, Send
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.server.http_server import create_server

MODEL = "some-org/some-model"


def call(name: str, **arguments: Any) -> str:
    """A call as the model writes it, with less white space than any template."""
    fields = {"name": name, "arguments": arguments}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return f"<tool_call>\n{text}\n</tool_call>"


def thinks(*calls: str) -> str:
    return "<think>\nWhat is next? é 漢字\n</think>\n\n" + "\n".join(calls)


DONE = "<think>\nAll is done.\n</think>\n\nDone."
_FILES = {task.id: task.files for task in TASKS}
_PLAN = "# Plan\n\n- measure the boards\n- cut the tails\n- fit the joint\n"
_LINES = "".join(f'Zeile {n}: "naïve café" – 漢字 🦜 \\ tab→ {n * n}\n' for n in range(1, 41))
_ORDER = {
    "customer": {
        "name": "Zoë Müller",
        "address": {"street": "Lindenstraße 5", "city": "Köln", "postcode": "50674"},
    },
    "items": [
        {"sku": "CH-12", "quantity": 2, "options": ["left", "long"]},
        {"sku": "MA-3", "quantity": 1},
    ],
    "shipping": "express",
    "gift": True,
}

PERFECT: dict[str, list[str]] = {
    "write": [
        thinks(call("write_file", path="notes/plan.md", content=_PLAN)),
        thinks(call("read_file", path="notes/plan.md")),
    ],
    "edit": [
        thinks(call("read_file", path="settings.ini")),
        thinks(call("edit_file", path="settings.ini", old_text="timeout = 30", new_text="x")),
        thinks(
            call(
                "edit_file",
                path="settings.ini",
                old_text="timeout = 30\nretries",
                new_text="timeout = 90\nretries",
            )
        ),
    ],
    "sum": [
        thinks(call("list_files")),
        thinks(*(call("read_file", path=path) for path in _FILES["sum"])),
        thinks(call("calculate", operation="add", numbers=[12, 7, 31, 5, 18, 23, 4, 9])),
        thinks(call("write_file", path="total.txt", content="109")),
    ],
    "find": [
        thinks(call("find_text", text="def shave")),
        thinks(call("write_file", path="found.txt", content="src/plane.py:6")),
    ],
    "parallel": [
        thinks(*(call("read_file", path=path) for path in _FILES["parallel"])),
        thinks(call("write_file", path="joined.txt", content="heron-willow-ember")),
    ],
    "nested": [
        thinks(call("read_file", path="order.txt")),
        thinks(call("place_order", **_ORDER)),
    ],
    "long": [
        thinks(call("write_file", path="lines.txt", content=_LINES)),
        thinks(call("read_file", path="lines.txt")),
    ],
    "recover": [
        thinks(call("look_up", key="part-1"), call("look_up", key="part-2")),
        thinks(call("look_up", key="part-1"), call("look_up", key="part-2")),
        thinks(call("write_file", path="price.txt", content="403")),
    ],
}
CLUMSY: list[str] = [
    thinks(call("delete_everything", path="/")),
    thinks(call("read_file", path=5)),
    thinks('<tool_call>\n{"name": "read_file", "arguments": {"path": oops}}\n</tool_call>'),
    thinks(call("read_file", path="../outside.txt")),
]


def perfect() -> dict[str, Any]:
    """A script that solves every task."""
    return scripted({name: [*outputs, DONE] for name, outputs in PERFECT.items()})


def scripted(tasks: dict[str, list[str]]) -> dict[str, Any]:
    """A script with the outputs of each task; the last output is repeated."""
    rules = [
        {"when": {"text": f"Task {name}."}, "turns": [{"text": text} for text in outputs]}
        for name, outputs in tasks.items()
    ]
    return {"rules": rules, "turns": [{"text": DONE}]}


class RecordingEngine(ScriptedEngine):
    """Records its last prompt and output, for a chat that requests token ids."""

    prompt: list[int] = []  # noqa: RUF012 - replaced, never changed
    output_ids: list[int] = []  # noqa: RUF012

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.prompt, self.output_ids = request.prompt.tolist(), []
        await super().generate(request, RecordingSink(sink, self.output_ids))


class RecordingSink:
    """Records the ids that a sink gets."""

    def __init__(self, sink: TokenSink, output_ids: list[int]) -> None:
        self._sink = sink
        self._output_ids = output_ids
        self.drain = sink.drain

    def push(self, delta: TokenDelta) -> bool:
        self._output_ids += delta.ids
        return self._sink.push(delta)


def _with_ids(engine: RecordingEngine, send: Send) -> Send:
    """The last chunks of a chat stream, with the ids that vLLM includes."""

    async def send_with_ids(message: Message) -> None:
        body = message.get("body", b"")
        if b"data: [DONE]" in body:
            choice = {"index": 0, "delta": {}, "token_ids": engine.output_ids}
            ids = {"prompt_token_ids": engine.prompt, "choices": [choice]}
            frame = f"data: {json.dumps(ids)}\n\n".encode()
            message = {**message, "body": body.replace(b"data: [DONE]", frame + b"data: [DONE]")}
        await send(message)

    return send_with_ids


@asynccontextmanager
async def like_vllm(
    folder: Path, script: dict[str, Any], *, returns_ids: bool = True
) -> AsyncIterator[str]:
    """A server like vLLM, with a chat API that renders each prompt from text, and token prompts.

    One scripted engine with one prefix cache serves both.
    """
    model = load_model(folder, tool_parser="hermes", reasoning_parser="qwen3")
    ids = (model.tokenizer.controls["<|im_end|>"],)
    engine = RecordingEngine(
        model.tokenizer,
        parse_script(json.dumps(script)),
        options=ScriptedOptions(chunk=4),
        stop_ids=ids,
    )
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]), PLAIN)
    chat = App(
        ModelRegistry(
            [TokenModel((MODEL,), model, preparer, ReplicaPool([engine]), max_context=32768)]
        )
    )
    tokens = CompletionsServer(engine, CompletionModel((MODEL,), model.tokenizer, ids, 32768))

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await chat(scope, receive, send)
        elif scope["path"] == "/v1/chat/completions":
            # Without extensions: direct writes to the connection would bypass `chat_send`.
            chat_send = _with_ids(engine, send) if returns_ids else send
            await chat({**scope, "extensions": {}}, receive, chat_send)
        else:
            await tokens(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    server = create_server(both)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
