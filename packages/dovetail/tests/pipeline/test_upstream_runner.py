"""Streams of an upstream that parses by itself: local ids, seals, and the next request.

The upstream is scripted; the tests of the OpenAI engine have real ones.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from http_fixture import NAME, Stage, run, serving
from media_files import pdf_file, to_base64

from dovetail.engines.engine import EngineCapabilities, EngineHealth
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import Sealer
from dovetail.pipeline.registry import ModelRegistry, UpstreamModel
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    DocumentBlock,
    EngineUnavailable,
    Event,
    Failure,
    Finish,
    Overloaded,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    Sampling,
    SpanEnd,
    TextDelta,
    ToolCallBlock,
    Usage,
)

USAGE = Usage(input_tokens=50, output_tokens=20, cached_tokens=32)
TURN: list[list[Event]] = [
    [ReasoningDelta("First the "), ReasoningDelta("weather.")],
    [SpanEnd("reasoning"), CallOpen(0, "look_up", "theirs-1")],
    [CallArgs(0, '{"city":"Oslo"}'), CallClose(0)],
    [ReasoningDelta("Then the time."), SpanEnd("reasoning")],
    [CallOpen(1, "clock", "theirs-1"), CallArgs(1, "{}"), CallClose(1)],
    [USAGE, Finish("tool_calls")],
]
TEXT: list[list[Event]] = [[TextDelta("Sunny.")], [SpanEnd("text"), USAGE, Finish("stop")]]
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("look_up", "clock")
]


class Upstream:
    """Streams one list of batches for each request; an exception among them is raised."""

    name = "openai"
    capabilities = EngineCapabilities(context_length=4096)

    def __init__(self, *streams: list[Any]) -> None:
        self.streams = list(streams)
        self.requests: list[Request] = []
        self.closed = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        self.requests.append(request)
        try:
            for batch in self.streams.pop(0):
                if isinstance(batch, Exception):
                    raise batch
                if batch is None:
                    await asyncio.Event().wait()
                yield batch
        finally:
            self.closed.set()


def make_registry(upstream: Upstream) -> ModelRegistry:
    relayed = UpstreamModel(
        names=(NAME,),
        engine=upstream,
        normalizer=PromptNormalizer(NormalizationOptions()),
        sealer=Sealer(Keyring([bytes(32)])),
        default_sampling=Sampling(temperature=0.3),
    )
    return ModelRegistry([relayed])


def test_second_call_is_dropped_if_the_upstream_ignores_the_limit() -> None:
    async def scene() -> None:
        upstream = Upstream(TURN, TURN)
        async with serving(registry=make_registry(upstream)) as stage:
            body: Any = {"model": NAME, "input": "Hi.", "tools": TOOLS}
            reply = await stage.request("POST", "/v1/responses", body)
            calls = [item for item in reply.json["output"] if item["type"] == "function_call"]
            assert len(calls) == 2
            body["parallel_tool_calls"] = False
            reply = await stage.request("POST", "/v1/responses", body)
            calls = [item for item in reply.json["output"] if item["type"] == "function_call"]
            assert [call["name"] for call in calls] == ["look_up"]
            assert upstream.closed.is_set()

    run(scene)


def test_calls_that_are_not_allowed_are_dropped() -> None:
    async def scene() -> None:
        upstream = Upstream(TURN)
        async with serving(registry=make_registry(upstream)) as stage:
            other = {"type": "function", "name": "other", "parameters": {}}
            allowed = {"type": "allowed_tools", "mode": "auto", "tools": [other]}
            tools: Any = [*TOOLS, other]
            body = {"model": NAME, "input": "Hi.", "tools": tools, "tool_choice": allowed}
            reply = await stage.request("POST", "/v1/responses", body)
            assert reply.status == 200
            assert not any(item["type"] == "function_call" for item in reply.json["output"])
            assert upstream.closed.is_set()

    run(scene)


def reasoning_and_calls(request: Request) -> list[tuple[str, str]]:
    """Return the reasoning and the calls of the history in order."""
    found = []
    for turn in request.turns:
        for block in turn.blocks:
            if isinstance(block, ReasoningBlock):
                found.append(("reasoning", block.text))
            elif isinstance(block, ToolCallBlock):
                found.append(("call", block.name))
    return found


def test_codex_sends_back_reasoning_it_did_not_receive_as_text() -> None:
    async def scene() -> None:
        upstream = Upstream(TURN, TEXT)
        async with serving(registry=make_registry(upstream)) as stage:
            client = stage.openai()
            first = await client.responses.create(
                model=NAME,
                input="Weather?",
                tools=TOOLS,  # type: ignore[arg-type]
                include=["reasoning.encrypted_content"],
                store=False,
            )
            items: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
            assert [item["type"] for item in items] == ["reasoning", "function_call"] * 2
            for item in items:
                if item["type"] == "reasoning":
                    item["summary"], _ = [], item.pop("content", None)
            calls = [item for item in items if item["type"] == "function_call"]
            results = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
                for call in calls
            ]
            assert len({call["call_id"] for call in calls}) == 2  # the upstream sent one id twice
            history = [{"role": "user", "content": "Weather?"}, *items, *results]
            second = await client.responses.create(model=NAME, input=history, store=False)
            assert second.output_text == "Sunny."
            assert second.usage is not None
            assert second.usage.input_tokens == USAGE.input_tokens
            assert second.usage.input_tokens_details.cached_tokens == USAGE.cached_tokens
        assert reasoning_and_calls(upstream.requests[1]) == [
            ("reasoning", "First the weather."),
            ("call", "look_up"),
            ("reasoning", "Then the time."),
            ("call", "clock"),
        ]
        assert upstream.requests[0].sampling.temperature == 0.3
        assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="relayed") == 1

    run(scene)


def test_every_api_streams_the_turn_in_its_order() -> None:
    async def scene() -> None:
        upstream = Upstream(TURN, TURN)
        async with serving(registry=make_registry(upstream)) as stage:
            async with stage.anthropic().messages.stream(
                model=NAME, max_tokens=100, messages=[{"role": "user", "content": "Weather?"}]
            ) as stream:
                message = await stream.get_final_message()
            kinds = [block.type for block in message.content]
            assert kinds == ["thinking", "tool_use", "thinking", "tool_use"]
            assert message.stop_reason == "tool_use"
            body = {"model": NAME, "messages": [{"role": "user", "content": "?"}], "stream": False}
            whole = (await stage.request("POST", "/v1/chat/completions", body)).json
            assert len(whole["choices"][0]["message"]["tool_calls"]) == 2

    run(scene)


async def _streamed(stage: Stage) -> tuple[int, bytes]:
    body = {"model": NAME, "messages": [{"role": "user", "content": "?"}], "stream": True}
    reply = await stage.request("POST", "/v1/chat/completions", body)
    return reply.status, reply.body


@pytest.mark.parametrize(
    ("batches", "status", "message"),
    [
        ([Overloaded("no room")], 503, "no room"),
        ([EngineUnavailable("gone")], 503, "gone"),
        ([[Failure("overloaded", "no room")]], 503, "no room"),
        ([TEXT[0], EngineUnavailable("gone")], 200, "gone"),
        ([TEXT[0], [Failure("engine_unavailable", "gone")]], 200, "gone"),
        ([TEXT[0]], 200, "closed the stream"),
        ([TEXT[0], ZeroDivisionError()], 200, "ZeroDivisionError"),
        ([[*TEXT[0], Failure("overloaded", "no room"), *TEXT[0]]], 200, "no room"),
    ],
)
def test_a_failure_is_a_status_before_output_and_an_event_after(
    batches: list[Any], status: int, message: str
) -> None:
    async def scene() -> None:
        async with serving(registry=make_registry(Upstream(batches))) as stage:
            got, body = await _streamed(stage)
            assert got == status
            assert message in body.decode()
            assert b'"finish_reason":"stop"' not in body

    run(scene)


@pytest.mark.parametrize("late", [EngineUnavailable("gone"), TEXT[0], [Finish("length")]])
def test_events_after_the_finish_are_ignored(late: Any) -> None:
    async def scene() -> None:
        upstream = Upstream([TEXT[0], [USAGE, Finish("stop"), TextDelta("more")], late])
        async with serving(registry=make_registry(upstream)) as stage:
            status, body = await _streamed(stage)
            assert status == 200
            assert body.count(b'"finish_reason":"') == 1
            assert b"more" not in body
            assert b"gone" not in body

    run(scene)


def test_disconnect_cancels_the_upstream_stream() -> None:
    async def scene() -> None:
        upstream = Upstream([TEXT[0], None])
        async with serving(registry=make_registry(upstream)) as stage:
            reader, writer = await stage.connect()
            body = json.dumps(
                {"model": NAME, "messages": [{"role": "user", "content": "?"}], "stream": True}
            ).encode()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(body)}"
            )
            writer.write(head.encode() + b"\r\n\r\n" + body)
            await reader.readuntil(b"Sunny.")
            writer.close()
            await upstream.closed.wait()

    run(scene)


def test_token_endpoints_are_not_supported_for_upstream_models() -> None:
    async def scene() -> None:
        async with serving(registry=make_registry(Upstream())) as stage:
            chat_body = {"model": NAME, "messages": [{"role": "user", "content": "?"}]}
            for path, body in (
                ("/v1/messages/count_tokens", chat_body),
                ("/tokenize", {"model": NAME, "prompt": "x"}),
                ("/v1/completions", {"model": NAME, "prompt": "x"}),
            ):
                reply = await stage.request("POST", path, body)
                assert 400 <= reply.status < 500, path
                assert "has access to its tokens" in reply.body.decode()
            entry = (await stage.request("GET", f"/v1/models/{NAME}")).json
            assert entry["max_model_len"] == 4096

    run(scene)


def test_text_of_documents_is_sent_upstream() -> None:
    async def scene() -> None:
        upstream = Upstream(TEXT)
        async with serving(registry=make_registry(upstream)) as stage:
            source = {"type": "base64", "media_type": "application/pdf"}
            data = to_base64(pdf_file(("Invoice 17.",)))
            document = {"type": "document", "source": {**source, "data": data}}
            message = {"role": "user", "content": [document]}
            body = {"model": NAME, "max_tokens": 50, "messages": [message]}
            reply = await stage.request("POST", "/v1/messages", body)
            assert reply.status == 200
            assert reply.headers["x-dovetail-diagnostics"] == "documents_extracted"
        (block,) = upstream.requests[0].turns[0].blocks
        assert isinstance(block, DocumentBlock)
        assert block.text is not None
        assert block.text.endswith("[page 1]\nInvoice 17.")

    run(scene)
