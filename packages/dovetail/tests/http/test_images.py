"""Images and documents never fail a session of a model that reads only text.

In every API, in every position: a text replaces them, prompts stay prefixes of the next prompts,
and the response reports it.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from http_fixture import CALL, NAME, Stage, run, service, serving, tiny_model
from media_files import pdf_file, png_file, to_base64

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry
from dovetail.pipeline.rendering import PromptSettings

Json = dict[str, Any]
PNG, PDF = to_base64(png_file(640, 480)), to_base64(pdf_file(("Invoice 17.",)))
IMAGE_TEXT = f"[image: image/png, 640x480 pixels, {len(png_file(640, 480))} bytes; this model"
PDF_TEXT = "1 page]\n[page 1]\nInvoice 17."
NOTES = "x-dovetail-diagnostics"
LOOK_UP = {"type": "object", "properties": {}}


def messages_session(stage: Stage) -> tuple[str, list[Json], Callable[[Any], list[Json]]]:
    """Claude Code: its Read tool returns images and PDF files inside of tool results."""
    tools = [{"name": "look_up", "input_schema": LOOK_UP}]
    base = {"model": NAME, "max_tokens": 50, "tools": tools}
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    image = {"type": "image", "source": source}
    file = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    document = {"type": "document", "source": file, "title": "a.pdf"}

    def follow(reply: Any) -> list[Json]:
        call = next(block for block in reply["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [image, document]}
        return [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": [result]},
        ]

    first = [{"role": "user", "content": [{"type": "text", "text": "See."}, image]}]
    return "/v1/messages", [base, {"messages": first}], follow


def responses_session(stage: Stage) -> tuple[str, list[Json], Callable[[Any], list[Json]]]:
    """Codex: its view_image tool returns a result with an image."""
    base = {
        "model": NAME,
        "store": False,
        "tools": [{"type": "function", "name": "look_up", "parameters": LOOK_UP}],
    }
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    document = {
        "type": "input_file",
        "filename": "a.pdf",
        "file_data": f"data:application/pdf;base64,{PDF}",
    }

    def follow(reply: Any) -> list[Json]:
        call = reply["output"][-1]["call_id"]
        result = {"type": "function_call_output", "call_id": call, "output": [image, document]}
        return [*reply["output"], result]

    text = {"type": "input_text", "text": "See."}
    first = [{"type": "message", "role": "user", "content": [text, image]}]
    return "/v1/responses", [base, {"input": first}], follow


def chat_session(stage: Stage) -> tuple[str, list[Json], Callable[[Any], list[Json]]]:
    function = {"name": "look_up", "parameters": LOOK_UP}
    base = {"model": NAME, "tools": [{"type": "function", "function": function}]}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    document = {"type": "file", "file": file}

    def follow(reply: Any) -> list[Json]:
        message = reply["choices"][0]["message"]
        call = message["tool_calls"][0]["id"]
        return [message, {"role": "tool", "tool_call_id": call, "content": [image, document]}]

    first = [{"role": "user", "content": [{"type": "text", "text": "See."}, image]}]
    return "/v1/chat/completions", [base, {"messages": first}], follow


SESSIONS = (messages_session, responses_session, chat_session)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.__name__)
def test_session_with_images_and_documents(session: Any) -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(CALL, CALL, "Done.")
            path, (base, history), follow = session(stage)
            field = next(iter(history))
            expected = [["images_replaced"], ["images_replaced", "documents_extracted"]]
            for notes in (expected[0], expected[1], expected[1]):
                reply = await stage.request("POST", path, base | history)
                assert reply.status == 200, reply.body
                assert reply.headers[NOTES].split(", ") == notes
                if len(stage.engine.requests) < 3:
                    history = {field: [*history[field], *follow(reply.json)]}
            prompts = [list(request.prompt) for request in stage.engine.requests]
            output = stage.engine.tokenizer.encode(CALL)
            for before, after in pairwise(prompts):
                assert after[: len(before) + len(output)] == before + output
            text = stage.engine.tokenizer.decode(prompts[-1])
            assert text.count(IMAGE_TEXT) == 3
            assert text.count(PDF_TEXT) == 2
            assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="exact") == 2

    run(scene)


def rejecting_registry() -> ModelRegistry:
    registry, _ = service()
    entry = registry.entries[0]
    ledger, keyring = Ledger(MemoryLedgerStore()), Keyring([bytes(32)])
    settings = PromptSettings(images="reject")
    object.__setattr__(entry, "preparer", ChatPreparer(tiny_model(), ledger, keyring, settings))
    return registry


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.__name__)
def test_rejected_images(session: Any) -> None:
    async def scene() -> None:
        async with serving(registry=rejecting_registry()) as stage:
            path, (base, history), _ = session(stage)
            reply = await stage.request("POST", path, base | history)
            assert reply.status == 400
            assert "accepts only text" in reply.json["error"]["message"]

    run(scene)


def test_models_state_what_they_read() -> None:
    async def scene() -> None:
        async with serving() as stage:
            given: tuple[Json, ...] = ({}, {"anthropic_version": "2023-06-01"})
            for headers in given:
                listed = await stage.request("GET", "/v1/models", **headers)
                one = await stage.request("GET", f"/v1/models/{NAME}", **headers)
                entries = [*listed.json["data"], one.json]
                assert all(entry["input_modalities"] == ["text"] for entry in entries)
            codex = await stage.request("GET", "/v1/models?client_version=0.170.0")
            assert codex.json["models"][0]["input_modalities"] == ["text"]

    run(scene)
