"""The modules that one streaming request enters are those that `docs/architecture.md` lists.

A complete server runs in the process: memory stores, the scripted engine, no keys. A client sends
the second request of a tool loop over the Messages API, so that an earlier turn is recognized, and
gets reasoning, text and a tool call. A profile function records each of our modules in which a
function is called, from the first byte of the request to the end of its record. Tasks that ran
before (health checks, the server's ticks) are not counted.
"""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from http_fixture import NAME, Stage, head, read_reply, run, serving, tiny_model

from dovetail.engines.scripted import ScriptedEngine, parse_script
from dovetail.http.options import HttpOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool

PAGE = Path(__file__).parents[4] / "docs" / "architecture.md"
LISTED = re.compile(r"<!-- modules of a request -->\n(.*?)<!-- end -->", re.S)
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "%s"}}\n</tool_call>'
TEXT = "<think>\nWell.\n</think>\n\nI look.\n" + CALL
SCRIPT = json.dumps({"turns": [{"text": TEXT % city} for city in ("Oslo", "Rome")]})
TOOL = {"name": "look_up", "input_schema": {"type": "object", "properties": {"city": {}}}}
QUESTION: dict[str, Any] = {"role": "user", "content": "Where is it warm?"}


def registry(ledger: Ledger) -> ModelRegistry:
    """A model whose engine follows the script."""
    model = tiny_model.__wrapped__()  # caches that another test has filled must not skip modules
    stop = model.tokenizer.controls["<|im_end|>"]
    engine = ScriptedEngine(model.tokenizer, parse_script(SCRIPT), stop_ids=(stop,))
    preparer = ChatPreparer(model, ledger, Keyring([bytes(32)]))
    return ModelRegistry([TokenModel((NAME,), model, preparer, ReplicaPool([engine]))])


@contextmanager
def entered_modules() -> Iterator[dict[str, str]]:
    """Record our modules that are entered in the block, with the first function entered."""
    seen: dict[str, str] = {}
    before = asyncio.all_tasks()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event != "call":
            return
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("dovetail") or name in seen:
            return
        if frame.f_code.co_name != "<module>" and _current_task() not in before:
            seen[name] = frame.f_code.co_qualname

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # in another thread
        return None


async def stream(stage: Stage, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send a streaming request; return the blocks of the response, as a client stores them."""
    body = {"model": NAME, "max_tokens": 500, "stream": True, "messages": messages, "tools": [TOOL]}
    sent = json.dumps(body).encode()
    reader, writer = await stage.connect()
    writer.write(head("POST", "/v1/messages", len(sent)) + sent)
    reply = await read_reply(reader)
    writer.close()
    await stage.ended.get()
    assert reply.status == 200, reply.body
    events = [json.loads(one) for one in re.findall(rb"^data: (.*)$", reply.body, re.M)]
    return _fold(events)


def _fold(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "input": ""})
        elif event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name != "type":
                    field = "input" if name == "partial_json" else name
                    blocks[-1][field] = blocks[-1].get(field, "") + value
    for block in blocks:
        given = block.pop("input")
        if block["type"] == "tool_use":
            block["input"] = json.loads(given)
    return blocks


def test_documentation_lists_the_modules_that_a_streaming_request_enters() -> None:
    entered: dict[str, str] = {}

    async def scene() -> None:
        ledger = Ledger(MemoryLedgerStore())
        async with serving(HttpOptions(ui=True), registry=registry(ledger)) as stage:
            blocks = await stream(stage, [QUESTION])
            await ledger.flush()
            assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
            call = {"type": "tool_result", "tool_use_id": blocks[2]["id"], "content": "Cold."}
            history = [
                QUESTION,
                {"role": "assistant", "content": blocks},
                {"role": "user", "content": [call]},
            ]
            with entered_modules() as seen:
                assert len(await stream(stage, history)) == 3
                await ledger.flush()
            entered.update(seen)

    run(scene)
    listed = LISTED.search(PAGE.read_text("utf-8"))
    assert listed is not None, f"no list of modules in {PAGE.name}"
    names = set(re.findall(r"`(dovetail[\w.]*)`", listed[1]))
    missing = [f"{name} ({function})" for name, function in entered.items() if name not in names]
    assert not missing, f"{PAGE.name} does not list: {', '.join(missing)}"
    unused = names - entered.keys()
    assert not unused, f"{PAGE.name} lists, but the request does not enter: {', '.join(unused)}"


def test_documentation_names_every_package() -> None:
    source = Path(__file__).parents[2] / "src" / "dovetail"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    page = PAGE.read_text("utf-8")
    drawn = {name for name in packages if re.search(rf"^{name} +\w", page, re.M)}
    assert drawn == packages
