"""llama.cpp's own server as the upstream, with its parsers and with Dovetail's."""

import json
from collections.abc import Iterator

import pytest
from http_fixture import run
from llama_server import THINKING_CHATML, llama_server
from llamacpp_environment import need_weights
from upstream_environment import LOOK, fetch_message, upstream, user

from dovetail.engines.openai import discover
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    ContextOverflow,
    ImageBlock,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

GREEDY = Sampling(temperature=0.0, max_tokens=4, seed=1)
OUTPUT = """<think>Hm.</think><tool_call>{"name": "go", "arguments": {}}</tool_call>"""
GRAMMAR = f"root ::= {json.dumps(OUTPUT)}"
CALL = ToolCallBlock("call_1", "look_up", '{"city": "Oslo"}')
LOOP = (
    Turn("assistant", (ReasoningBlock("Distinct."), CALL)),
    Turn("tool", (ToolResultBlock("call_1", (TextBlock("Sunny."),)),)),
)


@pytest.fixture(scope="module")
def plain() -> Iterator[Endpoint]:
    """A server with the template of the weights, which supports neither reasoning nor tools."""
    need_weights()
    with llama_server() as url:
        yield Endpoint.parse(url)


@pytest.fixture(scope="module")
def thinking() -> Iterator[Endpoint]:
    """A server whose template renders the reasoning of earlier turns."""
    need_weights()
    with llama_server(chat_template=THINKING_CHATML, reasoning_format=0) as url:
        yield Endpoint.parse(url)


def test_model_and_slot_length_are_discovered(plain: Endpoint) -> None:
    async def check() -> None:
        found = await discover(plain)
        assert found.name.endswith("smollm2.gguf")
        assert found.context_length == 1024
        assert found.version == "llamacpp"

    run(check)


@pytest.mark.parametrize("api", ["auto", "responses"])
def test_text_and_usage(plain: Endpoint, api: str) -> None:
    async def check() -> None:
        engine = upstream(plain, api=api)
        await engine.start()
        for _ in range(2):
            message = await fetch_message(engine, user("The capital of France?", sampling=GREEDY))
        (block,) = message.blocks
        assert isinstance(block, TextBlock)
        assert block.text
        # Its Responses API reports a truncated response as complete.
        assert message.finish == ("length" if api == "auto" else "stop")
        assert message.usage.output_tokens == 4
        assert 0 < message.usage.cached_tokens <= message.usage.input_tokens

    run(check)


@pytest.mark.parametrize(
    ("server", "field"), [("plain", "none"), ("thinking", "reasoning_content")]
)
def test_result_of_the_probe(server: str, field: str, request: pytest.FixtureRequest) -> None:
    endpoint: Endpoint = request.getfixturevalue(server)

    async def check() -> None:
        engine = upstream(endpoint)
        await engine.start()
        health = await engine.health()
        assert health.ready
        assert (health.facts or {})["reasoning_field"] == field
        message = await fetch_message(engine, user("Where?", *LOOP, tools=(LOOK,), sampling=GREEDY))
        lost = [diagnostic.code for diagnostic in message.diagnostics]
        assert lost == (["reasoning_not_carried"] if field == "none" else [])

    run(check)


def test_prompt_too_long_for_the_context_window(plain: Endpoint) -> None:
    async def check() -> None:
        engine = upstream(plain, reasoning_field="none")
        with pytest.raises(ContextOverflow, match=r"prompt is too long: \d+ tokens > 1024"):
            await fetch_message(engine, user("word " * 2000, sampling=GREEDY))

    run(check)


def test_limit_beyond_the_context_window_is_dropped(plain: Endpoint) -> None:
    async def check() -> None:
        engine = upstream(plain, reasoning_field="none")
        await engine.start()
        limit = Sampling(max_tokens=32000, temperature=0.0, stop=(" is",))
        message = await fetch_message(engine, user("The capital of France?", sampling=limit))
        assert message.finish == "stop"

    run(check)


def test_unsupported_image_becomes_a_placeholder(plain: Endpoint) -> None:
    async def check() -> None:
        engine = upstream(plain, reasoning_field="none")
        seen = Turn("user", (TextBlock("What is this?"), ImageBlock("image/png", data="aGk=")))
        message = await fetch_message(engine, Request("m", turns=(seen,), sampling=GREEDY))
        assert message.usage.output_tokens == 4

    run(check)


def test_raw_text_is_parsed_here(thinking: Endpoint) -> None:
    """The grammar makes the small model generate the output of a large one."""
    forced = json.dumps({"grammar": GRAMMAR, "reasoning_format": "none"})

    async def check() -> None:
        engine = upstream(
            thinking, raw=True, tool_parser="hermes", reasoning_parser="qwen3", body=forced
        )
        await engine.start()
        assert ((await engine.health()).facts or {})["raw"] is True
        message = await fetch_message(engine, user("Where?", sampling=Sampling(max_tokens=80)))
        reasoning, call = message.blocks
        assert isinstance(reasoning, ReasoningBlock)
        assert reasoning.text.strip() == "Hm."
        assert isinstance(call, ToolCallBlock)
        assert (call.name, json.loads(call.arguments)) == ("go", {})
        assert message.finish == "tool_calls"

    run(check)


def test_raw_history_is_written_in_the_models_syntax(plain: Endpoint) -> None:
    """The plain template does not render calls, but written as text they are in the prompt."""

    async def check() -> None:
        request = user("Where?", *LOOP, sampling=GREEDY)
        raw = upstream(plain, raw=True, tool_parser="hermes", reasoning_parser="qwen3")
        parsed = upstream(plain, reasoning_field="none")
        written, left_out = await fetch_message(raw, request), await fetch_message(parsed, request)
        assert written.usage.input_tokens > left_out.usage.input_tokens + 20
        assert written.diagnostics == ()

    run(check)
