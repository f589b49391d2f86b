"""Limits and references of the items that clients add to conversations."""

import asyncio
import json
from hashlib import sha256
from typing import Any

import msgspec
import openai
import pytest
from http_fixture import NAME, Stage, run, serving
from loop_steps import frozen_objects, longest_step
from responses_fixture import create_response

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail_protocols import RequestLimits

TENANTS = ApiKeys(
    [], [ApiKey(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")]
)


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def add(stage: Stage, id: str, *items: Any) -> Any:
    path = f"/v1/conversations/{id}/items"
    return await stage.request("POST", path, json.dumps({"items": items}).encode())


@pytest.mark.parametrize("known", [True, False])
def test_adding_fails_before_a_conversation_cannot_be_read(known: bool) -> None:
    """Also if it was stored by a version that did not record its size."""

    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=6000)) as stage:
            client = stage.openai().conversations
            made = await client.create(items=[user("x" * 600)])
            statuses = []
            for _ in range(6):
                if not known:
                    await remove_size(stage, made.id)
                reply = await add(stage, made.id, user("x" * 600))
                statuses.append(reply.status)
            assert statuses == [200, 200, 200, 200, 413, 413]
            assert reply.json["error"]["message"] == (
                "The conversation exceeds the limit of 6000 bytes."
            )
            assert len((await client.items.list(made.id, limit=100)).data) == 5
            page = await client.items.list(made.id, limit=1)
            await client.items.delete(page.data[0].id or "", conversation_id=made.id)
            assert (await add(stage, made.id, user("x" * 600))).status == 200
            await create_response(stage, stream=False, input="Hi.", conversation=made.id)
            assert len((await client.items.list(made.id, limit=100)).data) == 7

    run(scene)


async def remove_size(stage: Stage, id: str) -> None:
    store = stage.app.service.response_store
    record = await store.get("\x1fconversations", id)
    assert record is not None
    head = msgspec.json.decode(record.head)
    head.pop("size_bytes", None)
    assert await store.swap(record, msgspec.structs.replace(record, head=msgspec.json.encode(head)))


def test_size_is_not_shown() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("POST", "/v1/conversations", b"{}")
            assert set(reply.json) == {"id", "object", "created_at", "metadata"}

    run(scene)


def test_items_may_be_as_large_as_input() -> None:
    async def scene() -> None:
        async with serving() as stage:
            items = [user("word " * 100_000) for _ in range(10)]
            reply = await stage.request("POST", "/v1/conversations", {"items": items})
            assert reply.status == 200

    run(scene)


def test_items_are_limited_like_input() -> None:
    async def scene() -> None:
        limits = RequestLimits(max_messages=3, max_blocks=4)
        async with serving(HttpOptions(request_limits=limits)) as stage:
            blocks = [{"type": "input_text", "text": "x"}] * 5
            for items, unit in (([user("x")] * 4, "items"), ([user(blocks)], "content blocks")):  # type: ignore[arg-type]
                reply = await stage.request("POST", "/v1/conversations", {"items": items})
                assert reply.status == 400
                assert reply.json["error"]["message"].startswith("items: must have at most")
                assert unit in reply.json["error"]["message"]

    run(scene)


def test_references_are_resolved() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=TENANTS)) as stage:
            mine, other = stage.openai("key-a"), stage.openai("key-b")
            first = await mine.responses.create(model=NAME, input="Hi.")
            reference: Any = {"type": "item_reference", "id": first.output[-1].id}
            made = await mine.conversations.create(items=[reference])
            await mine.conversations.items.create(made.id, items=[user("Go on."), reference])
            page: Any = await mine.conversations.items.list(made.id, order="asc")
            assert [item.type for item in page.data] == ["message"] * 3
            assert page.data[0].content[0].text == first.output_text
            theirs = await other.conversations.create()
            unknown: Any = {"type": "item_reference", "id": "msg_nope"}
            for client, attempt in (
                (other, reference),
                (mine, unknown),
            ):
                with pytest.raises(openai.NotFoundError) as missing:
                    await client.conversations.create(items=[attempt])
                assert missing.value.param == "items"
            with pytest.raises(openai.NotFoundError):
                await other.conversations.items.create(theirs.id, items=[reference])

    run(scene)


def test_large_conversations_do_not_occupy_the_event_loop() -> None:
    """Their items are decoded, encoded and inserted in threads."""
    text = "word " * 120_000

    async def scene() -> None:
        async with serving() as stage:
            made = await stage.openai().conversations.create()
            for _ in range(5):
                body = json.dumps({"items": [user(text)] * 16}).encode()
                path = f"/v1/conversations/{made.id}/items"
                assert (await stage.request("POST", path, body)).status == 200
            stop = asyncio.Event()
            step = asyncio.create_task(longest_step(stop))
            for page in ("limit=1", "limit=100"):
                reply = await stage.request("GET", f"{path}?{page}", b"")
                assert reply.status == 200
            body = json.dumps({"model": NAME, "input": "x", "conversation": made.id}).encode()
            reply = await stage.request("POST", "/v1/responses", body)
            assert reply.json["error"]["code"] == "context_length_exceeded"
            stop.set()
            assert await step < 0.04

    with frozen_objects():
        run(scene)
