"""Items of stored responses: listed, counted, compacted, and referenced by their ids."""

import asyncio
from hashlib import sha256
from typing import Any

import openai
import pytest
from http_fixture import CALL, NAME, run, serving
from responses_fixture import REASONING, TOOL, create_response, turn_ids

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.responses.large_bodies import LargeBodySender
from dovetail_model import Overloaded, Sampling

TENANTS = ApiKeys(
    [], [ApiKey(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")]
)


def test_input_items_are_listed_page_by_page() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(f"{REASONING}I look.\n{CALL}", "Rain.")
            client = stage.openai()
            first = await create_response(stage, stream=False, input="Weather?")
            call = first.output[-1].call_id
            result: Any = {"type": "function_call_output", "call_id": call, "output": "rain"}
            more: Any = [result, {"role": "user", "content": "And now?"}]
            second = await create_response(
                stage, stream=False, input=more, previous_response_id=first.id
            )
            page = await client.responses.input_items.list(second.id, order="asc", limit=100)
            kinds = [item.type for item in page.data]
            assert kinds == [
                "message", "reasoning", "message", "function_call", "function_call_output",
                "message",
            ]  # fmt: skip
            ids = [item.id for item in page.data]
            assert len(set(ids)) == len(ids)
            assert ids[1:4] == [item.id for item in first.output]
            question: Any = page.data[0]
            assert (question.role, question.content[0].text) == ("user", "Weather?")
            for order, expected in (("asc", ids), ("desc", ids[::-1])):
                found = [
                    item.id
                    async for item in client.responses.input_items.list(
                        second.id,
                        order=order,  # type: ignore[arg-type]
                        limit=2,
                    )
                ]
                assert found == expected
            newest = await client.responses.input_items.list(second.id, limit=1)
            assert [item.id for item in newest.data] == ids[-1:]
            assert newest.has_more
            faults: Any = ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_none"})
            for wrong in faults:
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.input_items.list(second.id, **wrong)
                assert refused.value.param == next(iter(wrong))

    run(scene)


def test_input_count_equals_the_prompt_of_the_engine() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(f"{REASONING}Well.", "Yes.", "No.")
            client = stage.openai()
            body: Any = {"model": NAME, "tools": [TOOL], "instructions": "Be kind."}
            for text in ("Hi", "More", "And more"):
                counted = await client.responses.input_tokens.count(input=text, **body)
                assert len(stage.engine.requests) == ("Hi", "More", "And more").index(text)
                given = await client.responses.create(input=text, **body)
                assert counted.object == "response.input_tokens"
                assert given.usage is not None
                prompt_tokens = len(stage.engine.requests[-1].prompt)
                assert counted.input_tokens == given.usage.input_tokens == prompt_tokens
                body["previous_response_id"] = given.id
            unnamed = await client.responses.input_tokens.count(input="Hi")
            assert unnamed.input_tokens > 0

    run(scene)


def test_compacted_conversation_continues_from_its_summary() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("Oslo is rainy.", "They like Oslo.", "Yes.")
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="Tell me of Oslo.")
            extra: Any = [{"role": "user", "content": "Thanks."}]
            short = await client.responses.compact(
                model=NAME, previous_response_id=first.id, input=extra
            )
            assert short.object == "response.compaction"
            kinds = [item.type for item in short.output]
            assert kinds == ["message", "message", "compaction"]
            assert short.usage.input_tokens == len(stage.engine.requests[1].prompt)
            items: Any = [item.to_dict(warnings=False) for item in short.output]
            await client.responses.create(
                model=NAME, input=[*items, {"role": "user", "content": "Still there?"}]
            )
            prompt = stage.engine.tokenizer.decode(list(stage.engine.requests[2].prompt))
            order = ["Tell me of Oslo.", "Thanks.", "They like Oslo.", "Still there?"]
            places = [prompt.index(text) for text in order]
            assert places == sorted(places)
            assert "Oslo is rainy." not in prompt
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(short.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.compact(model=NAME)
            assert refused.value.param == "input"

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("typed", [{"type": "item_reference"}, {"type": None}, {}])
def test_items_may_be_referenced_by_their_ids(stream: bool, typed: dict[str, Any]) -> None:
    """As Vercel's SDK does for stored items. OpenAI's SDK needs no type."""

    async def scene() -> None:
        async with serving() as stage:
            output = f"{REASONING}I look.\n{CALL}"
            stage.engine.plan = stage.engine.script(output, "Rain.", "Bye.")
            first = await create_response(stage, stream=stream, input="Weather?")
            items: list[Any] = [
                {"role": "user", "content": "Weather?"},
                *({**typed, "id": item.id} for item in first.output),
                {
                    "type": "function_call_output",
                    "call_id": first.output[-1].call_id,
                    "output": "rain",
                },
            ]
            second = await create_response(stage, stream=stream, input=items)
            whole = turn_ids(stage, 0, output)
            assert list(stage.engine.requests[1].prompt[: len(whole)]) == whole
            await create_response(
                stage, stream=stream, input="Thanks", previous_response_id=second.id
            )
            longer = turn_ids(stage, 1, "Rain.")
            assert list(stage.engine.requests[2].prompt[: len(longer)]) == longer
            client = stage.openai()
            await client.responses.delete(first.id)
            for id in (first.output[0].id, "msg_none", "rs_" + "0" * 28, "\ud83d"):
                body = {"model": NAME, "input": [{**typed, "id": id}]}
                reply = await stage.request("POST", "/v1/responses", body)
                assert (reply.status, reply.json["error"]["param"]) == (404, "input")

    run(scene)


def test_referenced_items_are_limited_to_the_tenant_and_in_size() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=TENANTS, max_body_bytes=20_000)) as stage:
            stage.engine.plan = stage.engine.script("x" * 1000)
            mine, other = stage.openai("key-a"), stage.openai("key-b")
            first = await mine.responses.create(model=NAME, input="Hi")
            named: Any = {"type": "item_reference", "id": first.output[0].id}
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model=NAME, input=[named])
            await mine.responses.create(model=NAME, input=[named] * 2)
            with pytest.raises(openai.APIStatusError) as refused:
                await mine.responses.create(model=NAME, input=[named] * 100)
            assert refused.value.status_code == 413
            assert len(stage.engine.requests) == 2

    run(scene)


def test_unread_large_response_bodies_are_bounded() -> None:
    """Retrieving a response costs its client nothing, but the server holds all of its bytes."""

    async def scene() -> None:
        sender = LargeBodySender(max_body_bytes=100_000)
        read, body = asyncio.Event(), bytes(range(250)) * 1200
        sent: list[list[bytes]] = []

        def fetched() -> asyncio.Task[None]:
            own: list[bytes] = []
            sent.append(own)

            async def send(message: Any) -> None:
                await read.wait()
                own.append(message.get("body", b""))

            scope = {"method": "GET", "path": "/", "headers": []}
            exchange = ApiExchange(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
            return asyncio.create_task(sender.send(exchange, body))

        waiting = [fetched() for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await fetched()
        read.set()
        await asyncio.gather(*waiting)
        assert [b"".join(one) for one in sent] == [body] * 5 + [b""]
        await fetched()

    asyncio.run(scene())


def test_unusual_ids_and_paths() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for id in ("resp_1", "%00", "..", "a" * 3000, "resp_%2F..%2F", "%C3%A9", "%FF%FE"):
                for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
                    reply = await stage.request(method, f"/v1/responses/{id}{more}")
                    assert reply.status == 404, (id, reply.body)
                    assert len(reply.body) < 400
            for method, path, allowed in (
                ("PUT", "/v1/responses/resp_1", "GET, HEAD, DELETE"),
                ("GET", "/v1/responses/resp_1/cancel", "POST"),
                ("POST", "/v1/responses/resp_1/input_items", "GET, HEAD"),
                ("GET", "/v1/responses/compact", "POST"),
            ):
                reply = await stage.request(method, path)
                assert (reply.status, reply.headers["allow"]) == (405, allowed.lower())
            assert (await stage.request("GET", "/v1/responses/a/b")).status == 404
            assert (await stage.request("GET", "/v1/responses/")).status == 404
            for wrong in (3, ["resp"], {"a": 1}, True):
                body = {"model": NAME, "input": "x", "previous_response_id": wrong}
                reply = await stage.request("POST", "/v1/responses", body)
                assert reply.status == 400
                assert reply.json["error"]["param"] == "previous_response_id"
            for odd in ("\ud83d", "x" * 5000, "resp_\0"):
                body = {"model": NAME, "input": "x", "previous_response_id": odd}
                reply = await stage.request("POST", "/v1/responses", body)
                assert reply.status == 400
                assert reply.json["error"]["code"] == "previous_response_not_found"
                assert len(reply.body) < 400
            for empty in (None, ""):
                unset: Any = {"model": NAME, "input": "x", "previous_response_id": empty}
                assert (await stage.request("POST", "/v1/responses", unset)).status == 200

    run(scene)


def test_half_an_emoji_is_stored_and_continued() -> None:
    """JavaScript may split strings within a surrogate pair; the history must survive that."""

    async def scene() -> None:
        async with serving() as stage:
            sent = b'{"model": "%s", "input": "cut \\ud83d here"}' % NAME.encode()
            first = await stage.request("POST", "/v1/responses", sent)
            assert first.status == 200
            body = {"model": NAME, "input": "on", "previous_response_id": first.json["id"]}
            assert (await stage.request("POST", "/v1/responses", body)).status == 200
            assert len(stage.engine.requests) == 2

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_response_has_the_sampling_parameters_in_effect(stream: bool) -> None:
    """A response has the defaults of the server, unlike the request."""

    async def scene() -> None:
        async with serving() as stage:
            entry = stage.app.service.entries[0]
            object.__setattr__(entry, "default_sampling", Sampling(temperature=0.3, top_p=0.9))
            found = await create_response(stage, stream=stream, input="Hello.", temperature=0.7)
            assert (found.temperature, found.top_p) == (0.7, 0.9)
            assert found.model_extra["presence_penalty"] == 0.0

    run(scene)
