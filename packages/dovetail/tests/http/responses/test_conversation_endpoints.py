"""Conversations: the official SDK creates, changes and deletes them, and responses add to them."""

import asyncio
from hashlib import sha256
from typing import Any

import openai
import pytest
from http_fixture import CALL, NAME, Stage, run, service, serving
from responses_fixture import REASONING, create_response, turn_ids

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.conversations import ConversationStore
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail_model import Overloaded

TENANTS = ApiKeys(
    [], [ApiKey(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")]
)


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def texts(stage: Stage, id: str, **query: Any) -> list[str]:
    """Return the texts of a conversation's messages, or the types of its other items."""
    listed: Any = stage.openai().conversations.items.list(id, **{"order": "asc", **query})
    return [item.content[0].text if item.type == "message" else item.type async for item in listed]


def test_create_retrieve_update_and_delete() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai().conversations
            made = await client.create(metadata={"topic": "demo"}, items=[user("One.")])
            assert made.object == "conversation"
            assert made.metadata == {"topic": "demo"}
            assert await client.retrieve(made.id) == made
            changed = await client.update(made.id, metadata={"topic": "other"})
            assert changed.metadata == {"topic": "other"}
            assert (await client.retrieve(made.id)).metadata == {"topic": "other"}
            assert await texts(stage, made.id) == ["One."]
            deleted = await client.delete(made.id)
            assert (deleted.deleted, deleted.object) == (True, "conversation.deleted")
            with pytest.raises(openai.NotFoundError) as missing:
                await client.retrieve(made.id)
            assert made.id in missing.value.message
            with pytest.raises(openai.NotFoundError):
                await client.delete(made.id)
            assert (await stage.app.service.response_store.stats()).responses == 0
            empty = await client.create()
            assert empty.metadata == {}
            assert await texts(stage, empty.id) == []

    run(scene)


def test_items_are_added_listed_and_deleted() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai().conversations
            made = await client.create(items=[user("One.")])
            call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
            result = {"type": "function_call_output", "call_id": "c", "output": "x"}
            added = await client.items.create(made.id, items=[call, result, user("Two.")])  # type: ignore[list-item]
            assert [item.type for item in added.data] == [
                "function_call", "function_call_output", "message",
            ]  # fmt: skip
            whole = ["One.", "function_call", "function_call_output", "Two."]
            assert await texts(stage, made.id) == whole
            assert await texts(stage, made.id, order="desc", limit=1) == whole[::-1]
            ids = [item.id async for item in client.items.list(made.id, order="asc")]
            assert len(set(ids)) == 4
            assert all(ids)
            assert ids[1:] == [item.id for item in added.data]
            one: Any = await client.items.retrieve(ids[3] or "", conversation_id=made.id)
            assert (one.role, one.status, one.content[0].text) == ("user", "completed", "Two.")
            left = await client.items.delete(ids[0] or "", conversation_id=made.id)
            assert left.id == made.id
            assert await texts(stage, made.id) == whole[1:]
            with pytest.raises(openai.NotFoundError):
                await client.items.retrieve(ids[0] or "", conversation_id=made.id)
            with pytest.raises(openai.NotFoundError):
                await client.items.delete(ids[0] or "", conversation_id=made.id)
            for id in ids[1:]:
                await client.items.delete(id or "", conversation_id=made.id)
            assert await texts(stage, made.id) == []

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_responses_continue_a_conversation_exactly(stream: bool, store: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            outputs = [f"{REASONING}I look.\n{CALL}", f"{REASONING}It rains.", "Good bye."]
            stage.engine.plan = stage.engine.script(*outputs)
            made = await stage.openai().conversations.create(items=[user("Be brief.")])
            more: Any = {"stream": stream, "conversation": made.id, "store": store}
            first = await create_response(stage, input="Weather?", **more)
            assert first.conversation.id == made.id
            call = next(item for item in first.output if item.type == "function_call")
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
            await create_response(stage, input=[result], **more)
            last = await create_response(stage, input="Thanks.", **more)
            assert last.output_text == "Good bye."
            for turn in (1, 2):
                whole = turn_ids(stage, turn - 1, outputs[turn - 1])
                assert list(stage.engine.requests[turn].prompt[: len(whole)]) == whole
            assert await texts(stage, made.id) == [
                *("Be brief.", "Weather?", "reasoning", "I look.", "function_call"),
                *("function_call_output", "reasoning", "It rains.", "Thanks.", "Good bye."),
            ]

    run(scene)


def test_conversation_outlives_its_responses() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            made = await client.conversations.create()
            first = await create_response(
                stage, stream=False, input="Hi.", conversation={"id": made.id}
            )
            await client.responses.delete(first.id)
            await create_response(stage, stream=False, input="Go on.", conversation=made.id)
            assert await texts(stage, made.id) == ["Hi.", "Hello.", "Go on.", "Hello."]

    run(scene)


def test_failed_and_rejected_responses_add_nothing() -> None:
    async def scene() -> None:
        async with serving(max_context=200) as stage:
            client = stage.openai()
            made = await client.conversations.create()
            with pytest.raises(openai.BadRequestError):
                await create_response(
                    stage, stream=False, input="long " * 100, conversation=made.id
                )
            assert await texts(stage, made.id) == []

    run(scene)


def test_background_responses_belong_to_conversations() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            made = await client.conversations.create()
            found = await client.responses.create(
                model=NAME, input="Hi.", conversation=made.id, background=True
            )
            while found.status in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
                found = await client.responses.retrieve(found.id)
            assert found.status == "completed"
            for _ in range(500):  # items are added a moment after the status
                if await texts(stage, made.id):
                    break
                await asyncio.sleep(0.01)
            assert await texts(stage, made.id) == ["Hi.", "Hello."]

    run(scene)


def test_invalid_requests() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            made = await client.conversations.create()
            first = await create_response(stage, stream=False, input="Hi.")
            faults: list[tuple[Any, str]] = [
                ({"conversation": {}}, "conversation"),
                ({"conversation": 5}, "conversation"),
                ({"conversation": made.id, "previous_response_id": first.id}, "conversation"),
            ]
            for body, param in faults:
                with pytest.raises(openai.BadRequestError) as refused:
                    await create_response(stage, stream=False, input="Hi.", **body)
                assert refused.value.param == param
            with pytest.raises(openai.NotFoundError) as missing:
                await create_response(stage, stream=False, input="Hi.", conversation="conv_x")
            assert missing.value.param == "conversation"
            items: list[Any] = [
                ({"items": [user("x")] * 21}, "items"),
                ({"items": [{"type": "message", "role": "king", "content": "x"}]}, "items[0].role"),
                ({"items": "x"}, "items"),
                ({"metadata": {"a": "b" * 513}}, "metadata"),
                ({"metadata": {str(at): "" for at in range(17)}}, "metadata"),
                ({"metadata": {"a": 1}}, "metadata[...]"),
            ]
            for body, param in items:
                reply = await stage.request("POST", "/v1/conversations", body)
                assert (reply.status, reply.json["error"]["param"]) == (400, param), reply.body
            for path in (f"/v1/conversations/{made.id}", f"/v1/conversations/{made.id}/items"):
                assert (await stage.request("POST", path, {})).status == 400
            faulty: Any = ({"limit": 0}, {"order": "up"}, {"after": "msg_none"})
            for wrong in faulty:
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.conversations.items.list(made.id, **wrong)
                assert refused.value.param == next(iter(wrong))

    run(scene)


def test_conversations_and_responses_have_separate_ids() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            made = await client.conversations.create(items=[user("Secret.")])
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)
            with pytest.raises(openai.BadRequestError):
                await create_response(
                    stage, stream=False, input="Hi.", previous_response_id=made.id
                )
            first = await create_response(stage, stream=False, input="Hi.")
            with pytest.raises(openai.NotFoundError):
                await client.conversations.retrieve(first.id)

    run(scene)


def test_tenants_see_only_their_conversations() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=TENANTS)) as stage:
            mine, other = stage.openai("key-a"), stage.openai("key-b")
            made = await mine.conversations.create(items=[user("One.")])
            for attempt in (
                other.conversations.retrieve(made.id),
                other.conversations.delete(made.id),
                other.conversations.items.create(made.id, items=[user("Two.")]),
                other.responses.create(model=NAME, input="Hi.", conversation=made.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await attempt
            page = await mine.conversations.items.list(made.id)
            assert len(page.data) == 1

    run(scene)


class Racing(MemoryResponseBackend):
    """Another process changes a conversation between its reading and its replacement."""

    races = 0

    async def swap(self, old: Any, new: Any) -> bool:
        if self.races:
            self.races -= 1
            return False
        return await super().swap(old, new)


def test_concurrent_changes_are_not_lost() -> None:
    async def scene() -> None:
        backend = Racing()
        store = ConversationStore(ResponseStore(backend))
        made = await store.create("t", {})
        await asyncio.gather(
            *(store.append("t", made.id, [b"%d" % at], 1 << 20) for at in range(20))
        )
        found = await store.get_items("t", made.id, 1 << 20)
        assert sorted(map(int, found)) == list(range(20))
        backend.races = 5
        await store.append("t", made.id, [b"20"], 1 << 20)
        assert len(await store.get_items("t", made.id, 1 << 20)) == 21
        assert (await backend.stats()).responses == 22  # the conversation and its batches
        backend.races = 1000
        with pytest.raises(Overloaded):
            await store.append("t", made.id, [b"21"], 1 << 20)

    run(scene)


def test_conversation_that_was_deleted_during_a_response() -> None:
    """The response is complete nevertheless."""

    async def scene() -> None:
        registry, engine = service()
        registry = ModelRegistry(registry.entries)
        async with serving(registry=registry) as stage:
            client = stage.openai()
            made = await client.conversations.create()
            play = engine.script("Done.")

            async def delete_first(request: Any) -> Any:
                await registry.conversations.delete("", made.id)
                async for delta in play(request):
                    yield delta

            engine.plan = delete_first
            found = await create_response(stage, stream=True, input="Hi.", conversation=made.id)
            assert found.output_text == "Done."

    run(scene)


@pytest.mark.parametrize(
    ("method", "path", "alternative", "dialect"),
    [
        ("POST", "/v1/messages/batches", "POST /v1/messages", "anthropic"),
        ("GET", "/v1/messages/batches", "POST /v1/messages", "anthropic"),
        ("GET", "/v1/messages/batches/b_1/results", "POST /v1/messages", "anthropic"),
        ("GET", "/v1/chat/completions", "POST /v1/responses", "openai"),
        ("GET", "/v1/chat/completions/c_1", "POST /v1/responses", "openai"),
        ("POST", "/v1/chat/completions/c_1", "POST /v1/responses", "openai"),
        ("DELETE", "/v1/chat/completions/c_1", "POST /v1/responses", "openai"),
        ("GET", "/v1/chat/completions/c_1/messages", "POST /v1/responses", "openai"),
    ],
)
def test_unsupported_endpoints_name_the_alternative(
    method: str, path: str, alternative: str, dialect: str
) -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request(method, path, b"{}" if method == "POST" else b"")
            assert reply.status == 404
            assert alternative in reply.json["error"]["message"]
            if dialect == "anthropic":
                assert reply.json["type"] == "error"
                assert reply.json["error"]["type"] == "not_found_error"
            else:
                assert reply.json["error"]["type"] == "invalid_request_error"
            put = await stage.request("PUT", "/v1/chat/completions")
            assert put.status == 405

    run(scene)
