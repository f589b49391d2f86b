"""Stored responses: the official SDK retrieves, continues and deletes them."""

import asyncio
from hashlib import sha256
from typing import Any

import openai
import pytest
from http_fixture import CALL, NAME, run, service, serving
from responses_fixture import REASONING, TOOL, create_response, turn_ids

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.backend import StoredResponse
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail_model import EngineError

TENANTS = ApiKeys(
    [], [ApiKey(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")]
)


@pytest.mark.parametrize("stream", [False, True])
def test_chain_with_reasoning_and_calls_stays_token_exact(stream: bool) -> None:
    outputs = [
        f"{REASONING}I look.\n{CALL}",
        f"{REASONING}Once more.\n{CALL}\n{CALL}",
        f"{REASONING}It rains.",
        "Indeed.",
        f"{REASONING}Good bye.",
    ]

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(*outputs)
            response = await create_response(stage, stream=stream, input="Weather in Oslo?")
            for turn in range(1, len(outputs)):
                calls = [item for item in response.output if item.type == "function_call"]
                results: Any = [
                    {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
                    for call in calls
                ]
                more = results or [{"role": "user", "content": f"Go on, {turn}."}]
                before = response
                response = await create_response(
                    stage, stream=stream, input=more, previous_response_id=before.id
                )
                assert response.previous_response_id == before.id
                whole = turn_ids(stage, turn - 1, outputs[turn - 1])
                assert list(stage.engine.requests[turn].prompt[: len(whole)]) == whole
            assert len(stage.engine.requests) == len(outputs)

    run(scene)


def test_continued_prompt_equals_that_of_the_full_history() -> None:
    """The prompt of a chain is the one that a client without server state would cause."""

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(f"{REASONING}I look.\n{CALL}", "Rain.", "Rain.")
            first = await create_response(stage, stream=False, input="Weather?")
            call = first.output[-1].call_id
            result = {"type": "function_call_output", "call_id": call, "output": "rain"}
            await create_response(
                stage, stream=False, input=[result], previous_response_id=first.id
            )
            items = [item.model_dump(exclude_none=True) for item in first.output]
            whole = [{"role": "user", "content": "Weather?"}, *items, result]
            await create_response(stage, stream=False, input=whole)
            assert stage.engine.requests[1].prompt == stage.engine.requests[2].prompt

    run(scene)


def test_instructions_and_tools_are_those_of_each_request() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            first = await client.responses.create(
                model=NAME, input="Hi", instructions="Be brief.", tools=[TOOL]
            )
            second = await client.responses.create(
                model=NAME, input="More", instructions="Be long.", previous_response_id=first.id
            )
            prompt = stage.engine.tokenizer.decode(list(stage.engine.requests[1].prompt))
            assert "Be long." in prompt
            assert "Be brief." not in prompt
            assert "look_up" not in prompt
            assert (second.instructions, second.tools) == ("Be long.", [])

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_response_is_retrieved_as_it_was_returned(stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(f"{REASONING}I look.\n{CALL}")
            given = await create_response(stage, stream=stream, input="Hi", metadata={"a": "b"})
            fetched = await stage.openai().responses.retrieve(given.id)
            raw = await stage.request("GET", f"/v1/responses/{given.id}")
            assert raw.json["metadata"] == {"a": "b"}
            assert raw.json["output"][0]["encrypted_content"]
            same = ("status", "created_at", "completed_at", "usage", "tools", "model")
            for name in same:
                assert getattr(fetched, name) == getattr(given, name)
            assert [item.id for item in fetched.output] == [item.id for item in given.output]
            assert fetched.output_text == given.output_text

    run(scene)


def test_nothing_is_stored_without_store() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            given = await client.responses.create(model=NAME, input="Hi", store=False)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(given.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(
                    model=NAME, input="More", previous_response_id=given.id
                )
            assert refused.value.body == {
                "message": f"Previous response with id '{given.id}' not found.",
                "type": "invalid_request_error",
                "param": "previous_response_id",
                "code": "previous_response_not_found",
            }

    run(scene)


def test_stream_with_an_unknown_previous_response_is_rejected_before_it_starts() -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = {"model": NAME, "input": "x", "stream": True, "previous_response_id": "resp_1"}
            reply = await stage.request("POST", "/v1/responses", body)
            assert reply.status == 400
            assert reply.json["error"]["code"] == "previous_response_not_found"
            assert not stage.engine.requests

    run(scene)


def test_response_is_found_as_soon_as_its_last_frame_arrives() -> None:
    """A client that continues at the last frame does not even wait for the end of the stream."""

    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            previous: str | None = None
            for turn in range(50):
                stream = await client.responses.create(
                    model=NAME, input=f"{turn}", stream=True, previous_response_id=previous
                )
                async for event in stream:
                    if event.type == "response.completed":
                        previous = event.response.id
                        await client.responses.retrieve(previous)
                        break
                await stream.close()
            assert len(stage.engine.requests) == 50

    run(scene)


class Slow(MemoryResponseBackend):
    """A slow store."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.entered = asyncio.Event(), asyncio.Event()

    async def put(self, response: StoredResponse) -> None:
        self.entered.set()
        await self.open.wait()
        await super().put(response)


@pytest.mark.parametrize("stream", [False, True])
def test_with_a_shared_store_the_last_frame_waits_for_it(stream: bool) -> None:
    async def scene() -> None:
        made, _ = service()
        store = Slow()
        response_store = ResponseStore(store, has_peers=True)
        async with serving(registry=ModelRegistry(made.entries, {}, response_store)) as stage:
            creation = asyncio.create_task(create_response(stage, stream=stream, input="Hi"))
            await store.entered.wait()
            done, _ = await asyncio.wait({creation}, timeout=0.2)
            assert not done
            store.open.set()
            response = await creation
            assert await store.get("", response.id) is not None

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_single_process_does_not_wait_for_the_store(stream: bool) -> None:
    """Another server may read the store, but does not get the next turn."""

    async def scene() -> None:
        made, _ = service()
        store = Slow()
        async with serving(
            registry=ModelRegistry(
                made.entries, {}, ResponseStore(store, shared=True, write_timeout_seconds=3600.0)
            )
        ) as stage:
            assert (await create_response(stage, stream=stream, input="Hi")).status == "completed"
            store.open.set()

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_store_delays_the_last_frame_only_until_a_timeout(stream: bool) -> None:
    async def scene() -> None:
        made, _ = service()
        store = Slow()
        offered = ModelRegistry(
            made.entries, {}, ResponseStore(store, has_peers=True, write_timeout_seconds=0.05)
        )
        async with serving(registry=offered) as stage:
            response = await create_response(stage, stream=stream, input="Hi")
            assert response.output_text == "Hello."
            more = await create_response(
                stage, stream=stream, input="On", previous_response_id=response.id
            )
            assert more.status == "completed"
            store.open.set()

    run(scene)


def test_tenants_do_not_see_each_others_responses() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=TENANTS)) as stage:
            mine, other = stage.openai("key-a"), stage.openai("key-b")
            given = await mine.responses.create(model=NAME, input="Secret")
            never = await other.responses.with_raw_response.create(model=NAME, input="Hi")
            assert never.status_code == 200
            for operation in (
                lambda: other.responses.retrieve(given.id),
                lambda: other.responses.delete(given.id),
                lambda: other.responses.cancel(given.id),
                lambda: other.responses.input_items.list(given.id),
            ):
                with pytest.raises(openai.NotFoundError) as unknown:
                    await operation()
                assert given.id in unknown.value.message
            for call in (
                lambda: other.responses.create(
                    model=NAME, input="More", previous_response_id=given.id
                ),
                lambda: other.responses.input_tokens.count(
                    model=NAME, input="More", previous_response_id=given.id
                ),
                lambda: other.responses.compact(model=NAME, previous_response_id=given.id),
            ):
                with pytest.raises(openai.BadRequestError) as refused:
                    await call()
                assert refused.value.code == "previous_response_not_found"
            assert (await mine.responses.retrieve(given.id)).id == given.id
            assert len(stage.engine.requests) == 2

    run(scene)


def test_deleted_response_and_its_continuations_are_not_found() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="One")
            second = await client.responses.create(
                model=NAME, input="Two", previous_response_id=first.id
            )
            reply = await stage.request("DELETE", f"/v1/responses/{first.id}")
            assert reply.json == {"id": first.id, "object": "response", "deleted": True}
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.delete(first.id)
            assert (await client.responses.retrieve(second.id)).id == second.id
            with pytest.raises(openai.BadRequestError, match=first.id) as refused:
                await client.responses.create(
                    model=NAME, input="Three", previous_response_id=second.id
                )
            assert refused.value.code == "previous_response_not_found"
            page = await client.responses.input_items.list(second.id, order="asc")
            assert [item.type for item in page.data] == ["message"]

    run(scene)


def test_conversation_over_the_body_limit_is_rejected() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_body_bytes=2000)) as stage:
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="x" * 1000)
            second = await client.responses.create(
                model=NAME, input="y" * 200, previous_response_id=first.id
            )
            with pytest.raises(openai.APIStatusError) as refused:
                await client.responses.create(
                    model=NAME, input="z" * 1000, previous_response_id=second.id
                )
            assert refused.value.status_code == 413

    run(scene)


def test_truncated_response_is_stored_and_can_be_continued() -> None:
    async def scene() -> None:
        async with serving() as stage:

            async def truncate(request: EngineRequest) -> Any:
                yield TokenDelta(stage.engine.tokenizer.encode("Well"), finish="length")

            stage.engine.plan = truncate
            client = stage.openai()
            truncated = await client.responses.create(model=NAME, input="Hi", max_output_tokens=3)
            assert truncated.status == "incomplete"
            assert (await client.responses.retrieve(truncated.id)).status == "incomplete"
            await client.responses.create(model=NAME, input="On", previous_response_id=truncated.id)
            assert len(stage.engine.requests) == 2

    run(scene)


def test_aborted_stream_is_stored_as_failed() -> None:
    async def scene() -> None:
        async with serving() as stage:

            async def breaks(request: EngineRequest) -> Any:
                yield TokenDelta(stage.engine.tokenizer.encode("Well, "))
                raise EngineError("it broke")

            stage.engine.plan = breaks
            client = stage.openai()
            stream = await client.responses.create(model=NAME, input="Hi", stream=True)
            events = [event async for event in stream]
            last: Any = events[-1]
            assert last.type == "response.failed"
            assert (await client.responses.retrieve(last.response.id)).status == "failed"

    run(scene)


def test_many_clients_continue_concurrently() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()

            async def converse(name: int) -> None:
                previous: str | None = None
                for turn in range(5):
                    response = await client.responses.create(
                        model=NAME, input=f"client-{name} {turn}", previous_response_id=previous
                    )
                    previous = response.id

            await asyncio.gather(*(converse(name) for name in range(20)))
            decode = stage.engine.tokenizer.decode
            for request in stage.engine.requests:
                prompt = decode(list(request.prompt))
                assert len({word for word in prompt.split() if word.startswith("client-")}) == 1

    run(scene)
