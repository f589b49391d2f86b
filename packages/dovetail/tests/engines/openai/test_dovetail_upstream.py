"""A second Dovetail server as the upstream: no content is lost, with either API."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from http_fixture import NAME, THINKING_TEMPLATE, Stage, run, serving
from upstream_environment import LOOK, fetch_message, upstream, user

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.openai import OpenAIUpstream, discover
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    ContextOverflow,
    EngineError,
    Message,
    ReasoningBlock,
    Sampling,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

BOTH = pytest.mark.parametrize("api", ["chat", "responses"])
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "%s"}}\n</tool_call>'
INTERLEAVED = (
    "<think>\nFirst Oslo.\n</think>\n\n" + CALL % "Oslo"
    + "\n<think>\nThen Rome.\n</think>\n\n" + CALL % "Rome"
)  # fmt: skip


def behind(stage: Stage, api: str = "chat", **options: Any) -> OpenAIUpstream:
    return upstream(Endpoint(port=stage.port), NAME, api=api, **options)


def shape(message: Message) -> list[tuple[str, ...]]:
    """Return kinds and texts in the order of the model's output."""
    found: list[tuple[str, ...]] = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            found.append(("call", block.name, block.arguments))
        else:
            found.append((block.type, block.text.strip()))
    return found


def test_model_is_discovered() -> None:
    async def check() -> None:
        async with serving() as stage:
            found = await discover(Endpoint(port=stage.port))
            assert (found.name, found.context_length) == (NAME, 4096)
            assert found.version == "dovetail"
            engine = behind(stage)
            await engine.start()
            assert engine.capabilities.context_length == 4096

    run(check)


@BOTH
def test_interleaved_reasoning_and_calls_arrive_in_order(api: str) -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()
            stage.engine.plan = stage.engine.script(INTERLEAVED)
            message = await fetch_message(engine, user("Where?", tools=(LOOK,)))
            assert shape(message) == [
                ("reasoning", "First Oslo."),
                ("call", "look_up", '{"city": "Oslo"}'),
                ("reasoning", "Then Rome."),
                ("call", "look_up", '{"city": "Rome"}'),
            ]
            assert message.finish == "tool_calls"
            assert message.usage.input_tokens == len(stage.engine.requests[-1].prompt)
            assert message.usage.output_tokens > 0

    run(check)


@BOTH
def test_second_turn_extends_the_first_prompt(api: str) -> None:
    """The upstream recognizes its turn by the ids of its calls, so the turn is exact there."""

    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()
            stage.engine.requests.clear()
            stage.engine.plan = stage.engine.script(INTERLEAVED, "Done.")
            first = await fetch_message(engine, user("Where?", tools=(LOOK,)))
            calls = [block.id for block in first.blocks if isinstance(block, ToolCallBlock)]
            results = tuple(ToolResultBlock(id, (TextBlock("Sunny."),)) for id in calls)
            again = user(
                "Where?", Turn("assistant", first.blocks), Turn("tool", results), tools=(LOOK,)
            )
            second = await fetch_message(engine, again)
            assert shape(second) == [("text", "Done.")]
            before, after = (request.prompt for request in stage.engine.requests)
            generated = stage.engine.tokenizer.encode(INTERLEAVED)
            assert list(after[: len(before) + len(generated)]) == [*before, *generated]

    run(check)


def test_probe_detects_reasoning_segments() -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, "auto")
            await engine.start()
            facts = (await engine.health()).facts or {}
            assert (facts["api"], facts["reasoning_field"]) == ("chat", "reasoning_segments")
            assert facts["exact_turns"] is False
            reasoning_turn = Turn("assistant", (ReasoningBlock("Distinct."), TextBlock("A.")))
            await fetch_message(engine, user("Q", reasoning_turn, Turn("user", (TextBlock("Q2"),))))
            prompt = stage.engine.tokenizer.decode(list(stage.engine.requests[-1].prompt))
            assert "Distinct." in prompt

    run(check)


@BOTH
def test_custom_tool_round_trip(api: str) -> None:
    patch = ToolSpec("patch", "Patches.", custom=True)
    output = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'

    async def check() -> None:
        async with serving() as stage:
            for known in (True, False):
                engine = behind(stage, api, custom_tools=known)
                await engine.start()
                stage.engine.plan = stage.engine.script(output)
                message = await fetch_message(engine, user("Go.", tools=(patch,)))
                (call,) = message.blocks
                assert isinstance(call, ToolCallBlock)
                assert (call.name, call.arguments, call.custom) == ("patch", "a\nb", True)

    run(check)


@BOTH
def test_tool_namespace_round_trip(api: str) -> None:
    find = ToolSpec("find", namespace="docs", shown_as="docs__find")
    output = '<tool_call>\n{"name": "docs__find", "arguments": {}}\n</tool_call>'

    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()
            stage.engine.plan = stage.engine.script(output)
            message = await fetch_message(engine, user("Go.", tools=(find,)))
            (call,) = message.blocks
            assert isinstance(call, ToolCallBlock)
            assert (call.namespace, call.name) == ("docs", "find")

    run(check)


@BOTH
def test_truncation_at_the_limit_is_reported(api: str) -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()

            async def obeys(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("word"), finish="length")

            stage.engine.plan = obeys
            limited = user("Go.", sampling=Sampling(max_tokens=10))
            assert (await fetch_message(engine, limited)).finish == "length"
            assert stage.engine.requests[-1].max_tokens == 10
            beyond = user("Go.", sampling=Sampling(max_tokens=32000))
            assert (await fetch_message(engine, beyond)).finish == "context_window"

    run(check)


@BOTH
def test_prompt_too_long_is_a_client_error(api: str) -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()
            with pytest.raises(ContextOverflow, match=r"prompt is too long: \d+ tokens > 4095"):
                await fetch_message(engine, user("long " * 2000))

    run(check)


@BOTH
def test_closing_a_stream_cancels_it_upstream(api: str) -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage, api)
            await engine.start()

            async def hangs(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("word"))
                await asyncio.Event().wait()

            stage.engine.plan = hangs
            stage.engine.closed.clear()
            batches = engine.stream(user("Go."))
            while not any(isinstance(event, TextDelta) for event in await anext(batches)):
                pass
            await batches.aclose()
            await stage.engine.closed.wait()
            assert stage.engine.running == 0

    run(check)


def test_missing_model_is_an_upstream_error() -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = upstream(
                Endpoint(port=stage.port), "other", api="chat", reasoning_field="none"
            )
            with pytest.raises(EngineError, match="does not have the model"):
                await fetch_message(engine, user("Hi."))

    run(check)


def test_thinking_controls_reach_the_template() -> None:
    async def check() -> None:
        async with serving(template=THINKING_TEMPLATE) as stage:
            engine = behind(stage)
            await engine.start()
            stage.engine.plan = stage.engine.script("Hm.\n</think>\n\nHi.")
            request = user("Hi.", thinking=Thinking(enabled=True, effort="high"))
            message = await fetch_message(engine, request)
            assert shape(message) == [("reasoning", "Hm."), ("text", "Hi.")]

    run(check)


def test_required_call() -> None:
    async def check() -> None:
        async with serving() as stage:
            engine = behind(stage)
            await engine.start()
            stage.engine.plan = stage.engine.script(CALL % "Oslo")
            choice = ToolChoice("named", "look_up", parallel=False)
            message = await fetch_message(engine, user("Go.", tools=(LOOK,), tool_choice=choice))
            assert message.finish == "tool_calls"

    run(check)
