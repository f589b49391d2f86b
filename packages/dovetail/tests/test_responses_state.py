"""Responses that are kept: the official SDK fetches them, goes on from them and deletes them."""

import asyncio
from hashlib import sha256
from typing import Any

import openai
import pytest
from http_stage import CALL, NAME, Stage, run, service, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http import HttpOptions, Keys
from dovetail.http.access.key_file import Key
from dovetail.http.exchange import Exchange
from dovetail.http.stateful.background import Background
from dovetail.http.stateful.responses import Responses
from dovetail.kept import Kept, KeptResponse
from dovetail.kept import kept as kept_module
from dovetail.kept.store.memory import MemoryResponses
from dovetail.metrics import Metrics
from dovetail.service import Service
from dovetail_model import EngineError, Overloaded

TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
TENANTS = Keys([], [Key(name, sha256(f"key-{name}".encode()).digest()) for name in ("a", "b")])


async def ask(stage: Stage, *, stream: bool, **body: Any) -> Any:
    """A response, by either way."""
    client = stage.openai()
    body = {"model": NAME, "tools": [TOOL], **body}
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events:
        return await events.get_final_response()


def said(stage: Stage, at: int, answer: str) -> list[int]:
    """The prompt of a turn and what was generated, without the token that ended it."""
    return [*stage.engine.asked[at].prompt, *stage.engine.tokenizer.encode(answer)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chain_with_thoughts_and_calls_stays_token_exact(stream: bool) -> None:
    answers = [
        f"{THOUGHT}I look.\n{CALL}",
        f"{THOUGHT}Once more.\n{CALL}\n{CALL}",
        f"{THOUGHT}It rains.",
        "Indeed.",
        f"{THOUGHT}Good bye.",
    ]

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says(*answers)
            response = await ask(stage, stream=stream, input="Weather in Oslo?")
            for turn in range(1, len(answers)):
                calls = [item for item in response.output if item.type == "function_call"]
                results: Any = [
                    {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
                    for call in calls
                ]
                more = results or [{"role": "user", "content": f"Go on, {turn}."}]
                before = response
                response = await ask(
                    stage, stream=stream, input=more, previous_response_id=before.id
                )
                assert response.previous_response_id == before.id
                whole = said(stage, turn - 1, answers[turn - 1])
                assert list(stage.engine.asked[turn].prompt[: len(whole)]) == whole
            assert len(stage.engine.asked) == len(answers)

    run(scene)


def test_what_goes_on_is_what_the_whole_history_would_be() -> None:
    """The prompt of a chain is the one that a client without state would have made."""

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says(f"{THOUGHT}I look.\n{CALL}", "Rain.", "Rain.")
            first = await ask(stage, stream=False, input="Weather?")
            call = first.output[-1].call_id
            result = {"type": "function_call_output", "call_id": call, "output": "rain"}
            await ask(stage, stream=False, input=[result], previous_response_id=first.id)
            told = [item.model_dump(exclude_none=True) for item in first.output]
            whole = [{"role": "user", "content": "Weather?"}, *told, result]
            await ask(stage, stream=False, input=whole)
            assert stage.engine.asked[1].prompt == stage.engine.asked[2].prompt

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
            prompt = stage.engine.tokenizer.decode(list(stage.engine.asked[1].prompt))
            assert "Be long." in prompt
            assert "Be brief." not in prompt
            assert "look_up" not in prompt
            assert (second.instructions, second.tools) == ("Be long.", [])

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_fetched_as_it_was_given(stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says(f"{THOUGHT}I look.\n{CALL}")
            given = await ask(stage, stream=stream, input="Hi", metadata={"a": "b"})
            fetched = await stage.openai().responses.retrieve(given.id)
            raw = await stage.ask("GET", f"/v1/responses/{given.id}")
            assert raw.json["metadata"] == {"a": "b"}
            assert raw.json["output"][0]["encrypted_content"]
            same = ("status", "created_at", "completed_at", "usage", "tools", "model")
            for name in same:
                assert getattr(fetched, name) == getattr(given, name)
            assert [item.id for item in fetched.output] == [item.id for item in given.output]
            assert fetched.output_text == given.output_text

    run(scene)


def test_nothing_is_kept_without_store() -> None:
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


def test_a_stream_that_goes_on_from_nothing_is_refused_before_it_begins() -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = {"model": NAME, "input": "x", "stream": True, "previous_response_id": "resp_1"}
            reply = await stage.ask("POST", "/v1/responses", body)
            assert reply.status == 400
            assert reply.json["error"]["code"] == "previous_response_not_found"
            assert not stage.engine.asked

    run(scene)


def test_it_is_found_as_soon_as_the_end_is_seen() -> None:
    """A client that goes on at the last frame does not even wait for the stream to close."""

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
            assert len(stage.engine.asked) == 50

    run(scene)


class Slow(MemoryResponses):
    """A store that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.asked = asyncio.Event(), asyncio.Event()

    async def put(self, response: KeptResponse) -> None:
        self.asked.set()
        await self.open.wait()
        await super().put(response)


@pytest.mark.parametrize("stream", [False, True])
def test_where_servers_share_a_store_the_end_waits_for_it(stream: bool) -> None:
    async def scene() -> None:
        made, _ = service()
        store = Slow()
        kept = Kept(store, siblings=True)
        async with serving(offered=Service(made.served, {}, kept)) as stage:
            asked = asyncio.create_task(ask(stage, stream=stream, input="Hi"))
            await store.asked.wait()
            done, _ = await asyncio.wait({asked}, timeout=0.2)
            assert not done
            store.open.set()
            response = await asked
            assert await store.get("", response.id) is not None

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_a_store_that_hangs_holds_the_end_for_so_long_and_no_longer(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "PATIENCE", 0.05)

    async def scene() -> None:
        made, _ = service()
        store = Slow()
        offered = Service(made.served, {}, Kept(store, siblings=True))
        async with serving(offered=offered) as stage:
            response = await ask(stage, stream=stream, input="Hi")
            assert response.output_text == "Hello."
            more = await ask(stage, stream=stream, input="On", previous_response_id=response.id)
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
            for ask in (
                lambda: other.responses.retrieve(given.id),
                lambda: other.responses.delete(given.id),
                lambda: other.responses.cancel(given.id),
                lambda: other.responses.input_items.list(given.id),
            ):
                with pytest.raises(openai.NotFoundError) as unknown:
                    await ask()
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
            assert len(stage.engine.asked) == 2

    run(scene)


def test_what_is_deleted_is_gone_and_so_is_the_way_on_behind_it() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="One")
            second = await client.responses.create(
                model=NAME, input="Two", previous_response_id=first.id
            )
            reply = await stage.ask("DELETE", f"/v1/responses/{first.id}")
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


def test_input_items_are_listed_page_by_page() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says(f"{THOUGHT}I look.\n{CALL}", "Rain.")
            client = stage.openai()
            first = await ask(stage, stream=False, input="Weather?")
            call = first.output[-1].call_id
            result: Any = {"type": "function_call_output", "call_id": call, "output": "rain"}
            more: Any = [result, {"role": "user", "content": "And now?"}]
            second = await ask(stage, stream=False, input=more, previous_response_id=first.id)
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


def test_the_input_is_counted_as_the_engine_is_asked() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says(f"{THOUGHT}Well.", "Yes.", "No.")
            client = stage.openai()
            body: Any = {"model": NAME, "tools": [TOOL], "instructions": "Be kind."}
            for text in ("Hi", "More", "And more"):
                counted = await client.responses.input_tokens.count(input=text, **body)
                assert len(stage.engine.asked) == ("Hi", "More", "And more").index(text)
                given = await client.responses.create(input=text, **body)
                assert counted.object == "response.input_tokens"
                assert given.usage is not None
                asked = len(stage.engine.asked[-1].prompt)
                assert counted.input_tokens == given.usage.input_tokens == asked
                body["previous_response_id"] = given.id
            unnamed = await client.responses.input_tokens.count(input="Hi")
            assert unnamed.input_tokens > 0

    run(scene)


def test_a_conversation_is_compacted_and_goes_on_from_its_summary() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.says("Oslo is rainy.", "They like Oslo.", "Yes.")
            client = stage.openai()
            first = await client.responses.create(model=NAME, input="Tell me of Oslo.")
            extra: Any = [{"role": "user", "content": "Thanks."}]
            short = await client.responses.compact(
                model=NAME, previous_response_id=first.id, input=extra
            )
            assert short.object == "response.compaction"
            kinds = [item.type for item in short.output]
            assert kinds == ["message", "message", "compaction"]
            assert short.usage.input_tokens == len(stage.engine.asked[1].prompt)
            items: Any = [item.to_dict(warnings=False) for item in short.output]
            await client.responses.create(
                model=NAME, input=[*items, {"role": "user", "content": "Still there?"}]
            )
            prompt = stage.engine.tokenizer.decode(list(stage.engine.asked[2].prompt))
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


def test_a_conversation_larger_than_a_body_may_be_is_refused() -> None:
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


def test_a_cut_answer_is_kept_and_gone_on_from() -> None:
    async def scene() -> None:
        async with serving() as stage:

            async def cut_off(request: EngineRequest) -> Any:
                yield TokenDelta(stage.engine.tokenizer.encode("Well"), finish="length")

            stage.engine.plan = cut_off
            client = stage.openai()
            cut = await client.responses.create(model=NAME, input="Hi", max_output_tokens=3)
            assert cut.status == "incomplete"
            assert (await client.responses.retrieve(cut.id)).status == "incomplete"
            await client.responses.create(model=NAME, input="On", previous_response_id=cut.id)
            assert len(stage.engine.asked) == 2

    run(scene)


def test_a_broken_stream_is_kept_as_failed() -> None:
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("typed", [{"type": "item_reference"}, {"type": None}, {}])
def test_items_may_be_named_by_their_ids(stream: bool, typed: dict[str, Any]) -> None:
    """As Vercel's SDK does for all that a server is asked to store. OpenAI's needs no type."""

    async def scene() -> None:
        async with serving() as stage:
            answer = f"{THOUGHT}I look.\n{CALL}"
            stage.engine.plan = stage.engine.says(answer, "Rain.", "Bye.")
            first = await ask(stage, stream=stream, input="Weather?")
            items: list[Any] = [
                {"role": "user", "content": "Weather?"},
                *({**typed, "id": item.id} for item in first.output),
                {
                    "type": "function_call_output",
                    "call_id": first.output[-1].call_id,
                    "output": "rain",
                },
            ]
            second = await ask(stage, stream=stream, input=items)
            whole = said(stage, 0, answer)
            assert list(stage.engine.asked[1].prompt[: len(whole)]) == whole
            await ask(stage, stream=stream, input="Thanks", previous_response_id=second.id)
            longer = said(stage, 1, "Rain.")
            assert list(stage.engine.asked[2].prompt[: len(longer)]) == longer
            client = stage.openai()
            await client.responses.delete(first.id)
            for id in (first.output[0].id, "msg_none", "rs_" + "0" * 28, "\ud83d"):
                body = {"model": NAME, "input": [{**typed, "id": id}]}
                reply = await stage.ask("POST", "/v1/responses", body)
                assert (reply.status, reply.json["error"]["param"]) == (404, "input")

    run(scene)


def test_named_items_are_the_tenants_own_and_bounded() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=TENANTS, max_body_bytes=20_000)) as stage:
            stage.engine.plan = stage.engine.says("x" * 1000)
            mine, other = stage.openai("key-a"), stage.openai("key-b")
            first = await mine.responses.create(model=NAME, input="Hi")
            named: Any = {"type": "item_reference", "id": first.output[0].id}
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model=NAME, input=[named])
            await mine.responses.create(model=NAME, input=[named] * 2)
            with pytest.raises(openai.APIStatusError) as refused:
                await mine.responses.create(model=NAME, input=[named] * 100)
            assert refused.value.status_code == 413
            assert len(stage.engine.asked) == 2

    run(scene)


def test_large_answers_that_nobody_reads_have_a_bound() -> None:
    """One that is fetched costs its client nothing, and the server all of its bytes."""

    async def scene() -> None:
        made, _ = service()
        background = Background(made.kept, Metrics())
        options = HttpOptions(max_body_bytes=100_000)
        shown = Responses(made, options, background, background.abandon)
        read, body = asyncio.Event(), bytes(range(250)) * 1200
        sent: list[list[bytes]] = []

        def fetched() -> asyncio.Task[None]:
            own: list[bytes] = []
            sent.append(own)

            async def send(message: Any) -> None:
                await read.wait()
                own.append(message.get("body", b""))

            scope = {"method": "GET", "path": "/", "headers": []}
            exchange = Exchange(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
            return asyncio.create_task(shown._tell(exchange, body))

        waiting = [fetched() for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await fetched()
        read.set()
        await asyncio.gather(*waiting)
        assert [b"".join(one) for one in sent] == [body] * 5 + [b""]
        await fetched()

    asyncio.run(scene())


def test_odd_ids_and_addresses() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for id in ("resp_1", "%00", "..", "a" * 3000, "resp_%2F..%2F", "%C3%A9", "%FF%FE"):
                for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
                    reply = await stage.ask(method, f"/v1/responses/{id}{more}")
                    assert reply.status == 404, (id, reply.body)
                    assert len(reply.body) < 400
            for method, path, allowed in (
                ("PUT", "/v1/responses/resp_1", "GET, HEAD, DELETE"),
                ("GET", "/v1/responses/resp_1/cancel", "POST"),
                ("POST", "/v1/responses/resp_1/input_items", "GET, HEAD"),
                ("GET", "/v1/responses/compact", "POST"),
            ):
                reply = await stage.ask(method, path)
                assert (reply.status, reply.headers["allow"]) == (405, allowed.lower())
            assert (await stage.ask("GET", "/v1/responses/a/b")).status == 404
            assert (await stage.ask("GET", "/v1/responses/")).status == 404
            for wrong in (3, ["resp"], {"a": 1}, True):
                body = {"model": NAME, "input": "x", "previous_response_id": wrong}
                reply = await stage.ask("POST", "/v1/responses", body)
                assert reply.status == 400
                assert reply.json["error"]["param"] == "previous_response_id"
            for odd in ("\ud83d", "x" * 5000, "resp_\0"):
                body = {"model": NAME, "input": "x", "previous_response_id": odd}
                reply = await stage.ask("POST", "/v1/responses", body)
                assert reply.status == 400
                assert reply.json["error"]["code"] == "previous_response_not_found"
                assert len(reply.body) < 400
            for empty in (None, ""):
                unset: Any = {"model": NAME, "input": "x", "previous_response_id": empty}
                assert (await stage.ask("POST", "/v1/responses", unset)).status == 200

    run(scene)


def test_half_an_emoji_is_kept_and_gone_on_from() -> None:
    """JavaScript cuts strings in the middle of one; the history must survive that."""

    async def scene() -> None:
        async with serving() as stage:
            sent = b'{"model": "%s", "input": "cut \\ud83d here"}' % NAME.encode()
            first = await stage.ask("POST", "/v1/responses", sent)
            assert first.status == 200
            body = {"model": NAME, "input": "on", "previous_response_id": first.json["id"]}
            assert (await stage.ask("POST", "/v1/responses", body)).status == 200
            assert len(stage.engine.asked) == 2

    run(scene)


def test_many_clients_go_on_at_once() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.openai()

            async def talk(name: int) -> None:
                previous: str | None = None
                for turn in range(5):
                    response = await client.responses.create(
                        model=NAME, input=f"client-{name} {turn}", previous_response_id=previous
                    )
                    previous = response.id

            await asyncio.gather(*(talk(name) for name in range(20)))
            decode = stage.engine.tokenizer.decode
            for request in stage.engine.asked:
                prompt = decode(list(request.prompt))
                assert len({word for word in prompt.split() if word.startswith("client-")}) == 1

    run(scene)
