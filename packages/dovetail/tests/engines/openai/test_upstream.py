"""Upstreams that deviate from the API: rejections, streams, failures."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from http_fixture import run
from upstream_environment import (
    LOOK,
    FakeRequest,
    FakeResponse,
    Responder,
    chunks,
    events,
    fake_upstream,
    fetch_message,
    rejection,
    stream,
    upstream,
    user,
)

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai import OpenAIUpstream, create
from dovetail.engines.openai.discovery import PROBE_REASONING
from dovetail.engines.openai.tool_calls import call_id_format
from dovetail.engines.registry import EngineSetupError, UpstreamSetup
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    Diagnostic,
    EngineError,
    EngineUnavailable,
    Finish,
    Identity,
    ImageBlock,
    InvalidRequest,
    Overloaded,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
    Usage,
)

HI = stream({"content": "Hi."})
NO_SUCH_LIMIT = "max_tokens=32000 cannot be greater than max_model_len=4096. Please request fewer"
WINDOW = "This model's maximum context length is 4096 tokens"
TOO_LARGE = (
    f"'max_tokens' is too large: 32000. {WINDOW} and your request has 1234 input tokens",
    f"{WINDOW}. However, you requested 33000 (1000 in the messages, 32000 in the completion).",
)
THINKING = Thinking(enabled=True, effort="max", template_kwargs={"x": 1})


def chat(reply: Callable[[dict[str, Any]], FakeResponse]) -> Responder:
    """Return a server with one page, which passes the body of each request to `reply`."""

    def choose(request: FakeRequest) -> FakeResponse:
        if request.path == "/v1/chat/completions":
            return reply(request.body)
        return (
            FakeResponse(body=b'{"data": [{"id": "m"}]}')
            if request.path == "/v1/models"
            else FakeResponse(404)
        )

    return choose


def fixed(given: FakeResponse) -> Responder:
    return chat(lambda _: given)


def engine_factory(**options: Any) -> Callable[[Any], OpenAIUpstream]:
    merged = {"api": "chat", "reasoning_field": "none", **options}
    return lambda fake: upstream(fake.endpoint, **merged)


class TestRejectedFields:
    def test_rejected_optional_field_is_dropped_from_then_on(self) -> None:
        def picky(body: dict[str, Any]) -> FakeResponse:
            for name in ("reasoning_effort", "chat_template_kwargs"):
                if name in body:
                    return rejection(400, f"Unrecognized request argument supplied: {name}")
            return HI

        async def check() -> None:
            async with fake_upstream(chat(picky)) as fake:
                engine = engine_factory()(fake)
                request = user("Hi.", thinking=THINKING, sampling=Sampling(temperature=0.5))
                message = await fetch_message(engine, request)
                assert message.finish == "stop"
                reported = [found.code for found in message.diagnostics]
                assert reported[:2] == ["ignored:reasoning_effort", "ignored:chat_template_kwargs"]
                assert len(fake.bodies()) == 3
                await fetch_message(engine, request)
                assert len(fake.bodies()) == 4
                assert fake.bodies()[-1]["temperature"] == 0.5
                facts = (await engine.health()).facts or {}
                rejected = ["chat_template_kwargs", "reasoning_effort=max"]
                assert facts["fields_refused"] == rejected
                await fetch_message(engine, user("Hi.", thinking=Thinking(effort="low")))
                assert fake.bodies()[-2]["reasoning_effort"] == "low"

        run(check)

    def test_rejected_sampling_parameter_is_an_error(self) -> None:
        refusal = rejection(400, "Unrecognized request argument supplied: top_k")

        async def check() -> None:
            async with fake_upstream(fixed(refusal)) as fake:
                with pytest.raises(InvalidRequest, match="top_k"):
                    await fetch_message(
                        engine_factory()(fake), user("Hi.", sampling=Sampling(top_k=3))
                    )
                assert len(fake.bodies()) == 1

        run(check)

    def test_limit_is_sent_under_its_newer_name(self) -> None:
        def newer(body: dict[str, Any]) -> FakeResponse:
            if "max_tokens" in body:
                return rejection(
                    400, "Unsupported 'max_tokens'. Use 'max_completion_tokens' instead."
                )
            return HI

        async def check() -> None:
            async with fake_upstream(chat(newer)) as fake:
                await fetch_message(
                    engine_factory()(fake), user("Hi.", sampling=Sampling(max_tokens=5))
                )
                assert fake.bodies()[-1]["max_completion_tokens"] == 5

        run(check)

    @pytest.mark.parametrize("message", [NO_SUCH_LIMIT, *TOO_LARGE])
    def test_limit_beyond_the_context_window_is_dropped(self, message: str) -> None:
        def small(body: dict[str, Any]) -> FakeResponse:
            if "max_tokens" in body:
                return rejection(400, message)
            return stream({"content": "Hi."}, reason="length")

        async def check() -> None:
            async with fake_upstream(chat(small)) as fake:
                request = user("Hi.", sampling=Sampling(max_tokens=32000))
                assert (
                    await fetch_message(engine_factory()(fake), request)
                ).finish == "context_window"

        run(check)

    def test_images_are_described_to_text_only_servers(self) -> None:
        def blind(body: dict[str, Any]) -> FakeResponse:
            shown = isinstance(body["messages"][0]["content"], list)
            return rejection(500, "image input is not supported") if shown else HI

        async def check() -> None:
            async with fake_upstream(chat(blind)) as fake:
                seen = Turn("user", (TextBlock("See"), ImageBlock(url="http://a/b.png")))
                engine = engine_factory()(fake)
                before = engine.capabilities
                for _ in range(2):
                    message = await fetch_message(engine, Request("m", turns=(seen,)))
                    assert "images_replaced" in [one.code for one in message.diagnostics]
                assert (before.images, engine.capabilities.images) == (True, False)
                assert len(fake.bodies()) == 3
                described = "See\n[image: http://a/b.png; this model reads only text]"
                assert fake.bodies()[-1]["messages"][0]["content"] == described

        run(check)

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            (400, "You uploaded an unsupported image. Make sure it has one of these formats: png"),
            (400, "Invalid image data"),
            (413, "image exceeds 5 MB maximum"),
            (429, "Rate limit of gemini-flash-image: only text is supported for now"),
        ],
    )
    def test_broken_image_does_not_disable_images(self, status: int, message: str) -> None:
        def reply(body: dict[str, Any]) -> FakeResponse:
            content = body["messages"][0]["content"]
            broken = isinstance(content, list) and "broken" in str(content)
            return rejection(status, message) if broken else HI

        async def check() -> None:
            async with fake_upstream(chat(reply)) as fake:
                engine = engine_factory()(fake)
                for name, expected in (("broken", None), ("sound", HI)):
                    seen = Turn("user", (ImageBlock(url=f"http://a/{name}.png"),))
                    if expected is None:
                        with pytest.raises((InvalidRequest, Overloaded)):
                            await fetch_message(engine, Request("m", turns=(seen,)))
                    else:
                        await fetch_message(engine, Request("m", turns=(seen,)))
                assert isinstance(fake.bodies()[-1]["messages"][0]["content"], list)

        run(check)

    @pytest.mark.parametrize(
        "message",
        [
            "Invalid content type. image_url is only supported by certain models.",
            "No endpoints found that support image input",
            "At most 0 image(s) may be provided in one prompt.",
            "unknown variant `image_url`, expected `text`",
            "this model is missing data required for image input",
            "Model does not support images",
        ],
    )
    def test_messages_that_reject_images(self, message: str) -> None:
        def blind(body: dict[str, Any]) -> FakeResponse:
            shown = isinstance(body["messages"][0]["content"], list)
            return rejection(400, message) if shown else HI

        async def check() -> None:
            async with fake_upstream(chat(blind)) as fake:
                seen = Turn("user", (ImageBlock(url="http://a/b.png"),))
                await fetch_message(engine_factory()(fake), Request("m", turns=(seen,)))
                described = "[image: http://a/b.png; this model reads only text]"
                assert fake.bodies()[-1]["messages"][0]["content"] == described

        run(check)

    def test_field_dropped_without_effect_is_sent_again(self) -> None:
        def strict(body: dict[str, Any]) -> FakeResponse:
            if "bad" in str(body["messages"]):
                return rejection(400, "the messages of a stream_options game must not be bad")
            return HI

        async def check() -> None:
            async with fake_upstream(chat(strict)) as fake:
                engine = engine_factory()(fake)
                with pytest.raises(InvalidRequest):
                    await fetch_message(engine, user("bad"))
                await fetch_message(engine, user("good"))
                assert fake.bodies()[-1]["stream_options"]

        run(check)

    def test_required_fields_are_never_dropped(self) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(rejection(400, "tools: not supported"))) as fake:
                with pytest.raises(InvalidRequest, match="tools: not supported"):
                    await fetch_message(engine_factory()(fake), user("Hi.", tools=(LOOK,)))
                assert len(fake.bodies()) == 1

        run(check)

    def test_attempts_are_limited(self) -> None:
        async def check() -> None:
            async with fake_upstream(
                fixed(rejection(400, "reasoning_effort stream_options"))
            ) as fake:
                request = user("Hi.", thinking=THINKING)
                with pytest.raises(InvalidRequest):
                    await fetch_message(engine_factory()(fake), request)
                assert len(fake.bodies()) == 2

        run(check)


class TestStreams:
    def test_missing_usage_is_reported(self) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                found = await events(engine_factory()(fake), user("Hi."))
                assert found[-3:] == [Diagnostic("usage_unknown"), Usage(), Finish("stop")]

        run(check)

    def test_keep_alive_comments_and_several_calls_in_a_chunk(self) -> None:
        calls = [
            {"id": id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            for id in ("a", "b")
        ]
        body = b": keep-alive\n\n" + chunks({"tool_calls": calls}, done=False)

        async def check() -> None:
            async with fake_upstream(
                fixed(FakeResponse(body=body, kind="text/event-stream"))
            ) as fake:
                message = await fetch_message(engine_factory()(fake), user("Hi.", tools=(LOOK,)))
                ids = [block.id for block in message.blocks if isinstance(block, ToolCallBlock)]
                assert (ids, message.finish) == (["a", "b"], "tool_calls")

        run(check)

    def test_response_without_streaming(self) -> None:
        body = {"choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}]}

        async def check() -> None:
            async with fake_upstream(fixed(FakeResponse(body=json.dumps(body).encode()))) as fake:
                assert (await fetch_message(engine_factory()(fake), user("Hi."))).blocks == (
                    TextBlock("Hi."),
                )

        run(check)

    def test_call_of_an_unknown_tool(self) -> None:
        call = {"index": 0, "id": "a", "function": {"name": "other", "arguments": "{}"}}

        async def check() -> None:
            async with fake_upstream(fixed(stream({"tool_calls": [call]}))) as fake:
                message = await fetch_message(engine_factory()(fake), user("Hi.", tools=(LOOK,)))
                assert message.diagnostics[0] == Diagnostic("unknown_tool")

        run(check)

    @pytest.mark.parametrize("arguments", ['{"input": "a"}', '{"other": 1}', "a", '{"input": 1}'])
    def test_custom_tool_input_in_any_form(self, arguments: str) -> None:
        call = {"index": 0, "id": "a", "function": {"name": "patch", "arguments": arguments}}

        async def check() -> None:
            async with fake_upstream(fixed(stream({"tool_calls": [call]}))) as fake:
                request = user("Hi.", tools=(ToolSpec("patch", custom=True),))
                (block,) = (await fetch_message(engine_factory()(fake), request)).blocks
                assert isinstance(block, ToolCallBlock)
                wrapped = arguments == '{"input": "a"}'
                assert block.arguments == ("a" if wrapped else arguments)

        run(check)


class TestFailures:
    @pytest.mark.parametrize(
        ("given", "kind"),
        [
            (stream({"content": "Hi."}, reason=None, done=False), EngineUnavailable),
            (stream({"content": "Hi."}, reason=None), EngineUnavailable),
            (
                FakeResponse(
                    body=b'data: {"error": {"message": "It broke."}}\n\n', kind="text/plain"
                ),
                EngineError,
            ),
            (FakeResponse(body=b"", kind="text/event-stream"), EngineUnavailable),
            (FakeResponse(429, b"{}", headers=(("retry-after", "3"),)), Overloaded),
        ],
    )
    def test_broken_response_is_an_error(self, given: FakeResponse, kind: type[Exception]) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(given)) as fake:
                with pytest.raises(kind):
                    await fetch_message(engine_factory()(fake), user("Hi."))

        run(check)

    def test_closing_disconnects(self) -> None:
        endless = chunks({"content": "Hi."}, reason=None, done=False)
        given = FakeResponse(body=endless, kind="text/event-stream", ends=False)

        async def check() -> None:
            async with fake_upstream(fixed(given)) as fake:
                batches = engine_factory()(fake).stream(user("Hi."))
                assert (await anext(batches))[-1] == TextDelta("Hi.")
                await batches.aclose()
                await asyncio.wait_for(fake.disconnected.wait(), 30)

        run(check)

    def test_read_timeout(self) -> None:
        given = FakeResponse(body=b": \n\n", kind="text/event-stream", ends=False)

        async def check() -> None:
            async with fake_upstream(fixed(given)) as fake:
                with pytest.raises(EngineError, match="sent no data"):
                    await fetch_message(engine_factory(timeout=0.01)(fake), user("Hi."))

        run(check)

    def test_health_of_missing_and_rejecting_servers(self) -> None:
        async def check() -> None:
            async with fake_upstream(lambda _: FakeResponse(401, b"Who?")) as fake:
                engine = engine_factory()(fake)
                health = await engine.health()
                assert (health.ready, "rejected the configured API key" in health.detail) == (
                    False,
                    True,
                )
            assert not (await engine.health()).ready

        run(check)

    def test_neither_api(self) -> None:
        async def check() -> None:
            async with fake_upstream(lambda _: FakeResponse(404)) as fake:
                with pytest.raises(EngineError, match="neither"):
                    await engine_factory(api="auto")(fake).start()

        run(check)


def counting(read: str | None, **more: FakeResponse) -> Responder:
    """Return a server that counts words, and reads reasoning from one field."""

    def reply(body: dict[str, Any]) -> FakeResponse:
        if not body.get("messages"):
            return rejection(400, "messages?")
        for name, rejected in more.items():
            if any(name in message for message in body["messages"]):
                return rejected
        seen = sum(len(str(message.get(read, "")).split()) for message in body["messages"])
        counted = {"choices": [], "usage": {"prompt_tokens": 20 + seen}}
        return HI if body["stream"] else FakeResponse(body=json.dumps(counted).encode())

    return chat(reply)


class TestProbe:
    @pytest.mark.parametrize(
        ("server", "fact"),
        [
            (counting("reasoning_content"), "reasoning_content"),
            (counting("reasoning"), "reasoning"),
            (counting("other"), "none"),
            (counting("reasoning", reasoning_content=rejection(400, "?")), "reasoning"),
            (
                fixed(FakeResponse(body=b'{"choices": []}')),
                "reasoning_content, assumed: the server does not report token counts",
            ),
            (fixed(rejection(500, "no tools")), "reasoning_content, assumed: status 500"),
        ],
    )
    def test_results(self, server: Responder, fact: str) -> None:
        async def check() -> None:
            async with fake_upstream(server) as fake:
                engine = engine_factory(api="auto", reasoning_field="auto")(fake)
                await engine.start()
                facts = (await engine.health()).facts or {}
                assert (facts["api"], facts["reasoning_field"]) == ("chat", fact)

        run(check)

    def test_failed_probe_is_repeated_a_few_times(self) -> None:
        def flaky(body: dict[str, Any]) -> FakeResponse:
            return HI if body.get("stream") else rejection(503, "Loading")

        async def check() -> None:
            async with fake_upstream(chat(flaky)) as fake:
                engine = engine_factory(reasoning_field="auto")(fake)
                await engine.start()
                for _ in range(4):
                    await fetch_message(engine, user("Hi."))
                probes = [body for body in fake.bodies() if not body["stream"]]
                assert len(probes) == 3

        run(check)

    def test_reasoning_is_sent_in_its_field_or_counted_as_not_carried(self) -> None:
        request = user("Q", Turn("assistant", (ReasoningBlock("t"), TextBlock("A"))))

        async def check() -> None:
            async with fake_upstream(counting("reasoning")) as fake:
                await fetch_message(engine_factory(reasoning_field="auto")(fake), request)
                assert fake.bodies()[-1]["messages"][1]["reasoning"] == "t"
            async with fake_upstream(counting("other")) as fake:
                engine = engine_factory(reasoning_field="auto")(fake)
                for _ in range(2):
                    message = await fetch_message(engine, request)
                assert message.diagnostics[0] == Diagnostic("reasoning_not_carried")
                facts = (await engine.health()).facts or {}
                assert facts["not_carried"] == {"reasoning_not_carried": 2}

        run(check)

    def test_probe_reasoning_is_long_enough(self) -> None:
        assert len(PROBE_REASONING.split()) > 50


class TestResponsesOnly:
    def test_server_with_only_the_responses_api(self) -> None:
        end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
        delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi."}
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in (delta, end)).encode()

        def reply(request: FakeRequest) -> FakeResponse:
            if request.path != "/v1/responses":
                return FakeResponse(404)
            return FakeResponse(body=body, kind="text/event-stream")

        async def check() -> None:
            async with fake_upstream(reply) as fake:
                engine = engine_factory(api="auto", reasoning_field="auto")(fake)
                facts = (await engine.health()).facts or {}
                assert (facts["api"], facts["reasoning_field"]) == ("not known yet",) * 2
                await engine.start()
                assert (await fetch_message(engine, user("Hi."))).blocks == (TextBlock("Hi."),)
                facts = (await engine.health()).facts or {}
                assert (facts["api"], facts["reasoning_field"]) == ("responses", "items")

        run(check)

    def test_reasoning_field_can_be_configured(self) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                engine = engine_factory(reasoning_field="reasoning")(fake)
                await engine.start()
                turn = Turn("assistant", (ReasoningBlock("t"), TextBlock("A")))
                await fetch_message(engine, user("Q", turn))
                (body,) = fake.bodies()
                assert body["messages"][1]["reasoning"] == "t"

        run(check)


class TestCallIds:
    LOOP = (
        Turn("assistant", (ToolCallBlock("toolu_1", "look_up", "{}"),)),
        Turn("tool", (ToolResultBlock("toolu_1", (TextBlock("Sunny."),)),)),
        Turn("assistant", (ToolCallBlock("toolu_2", "look_up", "{}"),)),
        Turn("tool", (ToolResultBlock("toolu_2", (TextBlock("Rainy."),)),)),
    )

    def sent(self, model: str, reply: Responder) -> list[str]:
        """Return the ids of calls and results in the last request, in order."""
        found: list[str] = []

        async def check() -> None:
            async with fake_upstream(reply) as fake:
                engine = upstream(fake.endpoint, model, api="chat", reasoning_field="none")
                for _ in range(2):
                    await fetch_message(engine, user("Where?", *self.LOOP, tools=(LOOK,)))
                for message in fake.bodies()[-1]["messages"]:
                    found.extend(call["id"] for call in message.get("tool_calls", ()))
                    found.extend([message["tool_call_id"]] if "tool_call_id" in message else ())

        run(check)
        return found

    @pytest.mark.parametrize(
        ("model", "ids"),
        [
            ("some-model", ["toolu_1", "toolu_2"]),
            ("mistralai/Devstral-Small-2507", ["call00000", "call00001"]),
            ("mistral-small-latest", ["call00000", "call00001"]),
            ("moonshotai/Kimi-K2-Instruct", ["functions.look_up:0", "functions.look_up:1"]),
        ],
    )
    def test_call_ids_have_the_format_of_the_model(self, model: str, ids: list[str]) -> None:
        assert self.sent(model, fixed(HI)) == [id for id in ids for _ in range(2)]

    def test_another_dovetail_server_is_sent_no_ids_in_its_own_format(self) -> None:
        """An id in this format that the server never issued would mark the turn as not its own."""
        assert call_id_format(RemoteModel("m", version="dovetail")) == "nine"

    def test_call_ids_are_rewritten_after_a_rejection(self) -> None:
        def strict(body: dict[str, Any]) -> FakeResponse:
            if "toolu_1" in json.dumps(body):
                return rejection(500, "Tool call IDs should be alphanumeric strings with length 9!")
            return HI

        assert self.sent("local", chat(strict))[0] == "call00000"


class TestOptions:
    def test_extra_body_fields(self) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                session = Identity(session="s-1")
                engine = engine_factory(body='{"cache_prompt": true}')(fake)
                await fetch_message(engine, user("Hi.", identity=session))
                assert fake.bodies()[-1]["cache_prompt"] is True
                assert fake.requests[-1].headers["x-session-id"] == "s-1"

        run(check)

    @pytest.mark.parametrize("body", ["[", "[]"])
    def test_invalid_body_option(self, body: str) -> None:
        with pytest.raises(EngineSetupError, match="must be a JSON object"):
            upstream(Endpoint(), body=body)


HERMES = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Oslo"}}\n</tool_call>'
RAW = {"raw": True, "tool_parser": "hermes", "reasoning_parser": "qwen3"}


def test_raw_text_requires_chat_completions() -> None:
    options = {"raw": True, "api": "responses", "tool_parser": "hermes"}
    with pytest.raises(EngineSetupError, match="requires Chat Completions"):
        create(UpstreamSetup(Endpoint(), RemoteModel("m"), options))
    assert create(UpstreamSetup(Endpoint(), RemoteModel("m"), {})).name == "openai"


class TestRaw:
    def parsed(self, given: FakeResponse, **options: Any) -> Any:
        found: list[Any] = []

        async def check() -> None:
            async with fake_upstream(fixed(given)) as fake:
                engine = engine_factory(**{**RAW, **options})(fake)
                found.append(await fetch_message(engine, user("Where?", tools=(LOOK,))))

        run(check)
        return found[0]

    def test_interleaved_text_is_parsed_in_order(self) -> None:
        text = f"<think>\na\n</think>\n\n{HERMES}\n<think>\nb\n</think>\n\n{HERMES}"
        message = self.parsed(stream(*({"content": letter} for letter in text)))
        kinds = [block.type for block in message.blocks]
        assert kinds == ["reasoning", "tool_call", "reasoning", "tool_call"]
        assert message.finish == "tool_calls"

    def test_events_parsed_by_the_server_are_used(self) -> None:
        call = {"index": 0, "id": "a", "function": {"name": "look_up", "arguments": "{}"}}
        message = self.parsed(
            stream({"reasoning_content": "a"}, {"content": HERMES}, {"tool_calls": [call]})
        )
        assert [block.type for block in message.blocks] == ["reasoning", "tool_call", "tool_call"]
        assert message.finish == "tool_calls"

    def test_reasoning_parsed_by_the_server_has_ended(self) -> None:
        """This reasoning parser expects the text to begin inside reasoning."""
        given = stream({"reasoning_content": "a"}, {"content": "Hi."})
        message = self.parsed(given, reasoning_parser="deepseek_r1")
        assert message.blocks == (ReasoningBlock("a"), TextBlock("Hi.", raw="Hi."))

    @pytest.mark.parametrize("reason", ["stop", "length"])
    def test_incomplete_call_is_truncated(self, reason: str) -> None:
        message = self.parsed(stream({"content": HERMES[:50]}, reason=reason))
        assert message.finish == "length"
        assert not message.blocks[-1].complete

    def test_text_stays_text(self) -> None:
        assert self.parsed(HI).finish == "stop"

    def test_turns_are_written_in_the_models_syntax(self) -> None:
        call = ToolCallBlock("a", "look_up", '{"city": "Oslo"}')
        turns = (
            Turn("assistant", (ReasoningBlock("t0"), call, ReasoningBlock("t1"), call)),
            Turn("tool", (ToolResultBlock("a", (TextBlock("Sunny."),)),)),
        )

        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                await fetch_message(
                    engine_factory(**RAW)(fake), user("Where?", *turns, tools=(LOOK,))
                )
                body = fake.bodies()[-1]
                message = body["messages"][1]
                assert set(message) == {"role", "content"}
                order = [message["content"].index(mark) for mark in ("t0", "<tool_call>", "t1")]
                assert order == sorted(order)
                assert body["messages"][2]["role"] == "tool"
                assert body["tools"][0]["function"]["name"] == "look_up"

        run(check)

    def test_reasoning_that_cannot_be_written_is_reported(self) -> None:
        turn = Turn("assistant", (ReasoningBlock("t"), TextBlock("A")))

        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                engine = engine_factory(raw=True, tool_parser="hermes")(fake)
                message = await fetch_message(engine, user("Q", turn))
                assert message.diagnostics[0] == Diagnostic("reasoning_not_carried")
                assert fake.bodies()[-1]["messages"][1]["content"] == "A"

        run(check)

    def test_calls_that_cannot_be_written_are_reported(self) -> None:
        turn = Turn("assistant", (TextBlock("A"), ToolCallBlock("a", "look_up", "{}")))

        async def check() -> None:
            async with fake_upstream(fixed(HI)) as fake:
                engine = engine_factory(raw=True, reasoning_parser="qwen3")(fake)
                message = await fetch_message(engine, user("Q", turn))
                assert Diagnostic("calls_not_carried") in message.diagnostics
                assert fake.bodies()[-1]["messages"][1]["content"] == "A"

        run(check)

    def test_parsers_of_a_known_model_are_detected(self) -> None:
        async def check() -> None:
            async with fake_upstream(fixed(stream({"content": HERMES}))) as fake:
                engine = upstream(fake.endpoint, "Qwen/Qwen3-8B", api="chat", raw=True)
                message = await fetch_message(engine, user("Where?", tools=(LOOK,)))
                assert message.finish == "tool_calls"

        run(check)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({}, "syntax of tool calls and reasoning is not known"),
            ({"tool_parser": "hermes", "reasoning_parser": "gpt_oss"}, "are incompatible"),
        ],
    )
    def test_invalid_parsers(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(EngineSetupError, match=words):
            upstream(Endpoint(), raw=True, **options)


@pytest.mark.parametrize(
    ("session", "header"),
    [
        ("abc", "abc"),
        (" abc ", "abc"),
        ("a\r\nx: y", None),
        ("s\u00e9ance", None),
        (" ", None),
        ("a" * 513, None),
    ],
)
def test_session_header_is_sent_if_valid(session: str, header: str | None) -> None:
    async def check() -> None:
        async with fake_upstream(fixed(HI)) as fake:
            request = user("Hi.", identity=Identity(session=session))
            await fetch_message(engine_factory()(fake), request)
            assert fake.requests[-1].headers.get("x-session-id") == header

    run(check)


def test_rejected_key_is_not_quoted_to_clients() -> None:
    async def check() -> None:
        async with fake_upstream(fixed(rejection(401, "No such key: sk-secret"))) as fake:
            with pytest.raises(EngineError) as raised:
                await fetch_message(engine_factory()(fake), user("Hi."))
            assert "sk-secret" not in raised.value.message

    run(check)
