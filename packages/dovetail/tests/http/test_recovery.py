"""Recovered turns over HTTP: valid responses in all three APIs, with reports and metrics."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from http_fixture import CALL, NAME, THINKING_TEMPLATE, Stage, run, service, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.pipeline.recovery import RecoveryPolicy
from dovetail.pipeline.registry import ModelRegistry

USER: Any = [{"role": "user", "content": "Is it so?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
CLOSING = "\n</think>\n\n"
LOOP = "Let me look again. " * 200


@dataclass
class Shown:
    """What a client received: reasoning, text, names of complete calls, stop reason, usage."""

    reasoning: str
    text: str
    calls: list[str]
    stop: str
    output_tokens: int


@asynccontextmanager
async def recovering(template: str = "", **policy: Any) -> AsyncIterator[Stage]:
    """Run a server whose model has this policy."""
    registry, engine = service(template=template) if template else service()
    kinds = frozenset(policy.pop("kinds", ("reasoning", "empty", "loop")))
    recovery = RecoveryPolicy(kinds, policy.pop("loop_tokens", 300), **policy)
    entries = [replace(entry, recovery=recovery) for entry in registry.entries]  # type: ignore[arg-type]
    async with serving(registry=ModelRegistry(entries)) as stage:
        yield replace(stage, engine=engine)


async def _messages(stage: Stage, stream: bool) -> Shown:
    client = stage.anthropic()
    tools: Any = [{"name": "look_up", "input_schema": PARAMETERS}]
    body: Any = {"model": NAME, "max_tokens": 2000, "messages": USER, "tools": tools}
    if stream:
        async with client.messages.stream(**body) as events:
            message = await events.get_final_message()
    else:
        message = await client.messages.create(**body)
    blocks = message.content
    return Shown(
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        "".join(block.text for block in blocks if block.type == "text"),
        [block.name for block in blocks if block.type == "tool_use"],
        str(message.stop_reason),
        message.usage.output_tokens,
    )


async def _responses(stage: Stage, stream: bool) -> Shown:
    client = stage.openai()
    tool: Any = {"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": False}
    body: Any = {"model": NAME, "input": USER, "tools": [tool], "max_output_tokens": 2000}
    if stream:
        async with client.responses.stream(**body) as events:
            response = await events.get_final_response()
    else:
        response = await client.responses.create(**body)
    assert response.usage is not None
    return Shown(
        "".join(
            part.text
            for item in response.output
            if item.type == "reasoning"
            for part in item.content or ()
        ),
        response.output_text,
        [item.name for item in response.output if item.type == "function_call"],
        str(response.status),
        response.usage.output_tokens,
    )


async def _chat(stage: Stage, stream: bool) -> Shown:
    client = stage.openai()
    function = {"name": "look_up", "parameters": PARAMETERS}
    body: Any = {"model": NAME, "messages": USER, "max_tokens": 2000}
    body["tools"] = [{"type": "function", "function": function}]
    if stream:
        options: Any = {"include_usage": True}
        async with client.chat.completions.stream(**body, stream_options=options) as events:
            completion: Any = await events.get_final_completion()
    else:
        completion = await client.chat.completions.create(**body)
    choice = completion.choices[0]
    calls = choice.message.tool_calls or []
    return Shown(
        getattr(choice.message, "reasoning_content", None) or "",
        choice.message.content or "",
        [call.function.name for call in calls],
        choice.finish_reason,
        completion.usage.completion_tokens,
    )


APIS: dict[str, Callable[[Stage, bool], Awaitable[Shown]]] = {
    "messages": _messages,
    "responses": _responses,
    "chat": _chat,
}
ENDS = {"messages": "end_turn", "responses": "completed", "chat": "stop"}
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_api = pytest.mark.parametrize("api", APIS)


@every_api
@both_ways
def test_an_end_inside_reasoning(api: str, stream: bool) -> None:
    async def main() -> None:
        async with recovering(THINKING_TEMPLATE) as stage:
            stage.engine.plan = stage.engine.script("Hm", "It is so.")
            shown = await APIS[api](stage, stream)
            assert (shown.text, shown.stop) == ("It is so.", ENDS[api])
            assert shown.reasoning in ("Hm", "")  # summaries may be off
            tokens = len(stage.engine.tokenizer.encode(f"Hm{CLOSING}It is so."))
            assert shown.output_tokens == tokens + 2  # both end tokens
            assert stage.metric("dovetail_recoveries_total", model=NAME, kind="reasoning") == 1
            inserted = stage.metric("dovetail_recovery_tokens_total", model=NAME, kind="inserted")
            assert inserted == len(stage.engine.tokenizer.encode(CLOSING))

    run(main)


@every_api
@both_ways
def test_a_blank_turn(api: str, stream: bool) -> None:
    async def main() -> None:
        async with recovering() as stage:
            stage.engine.plan = stage.engine.script("\n\n", "It is so.")
            shown = await APIS[api](stage, stream)
            assert (shown.text, shown.stop) == ("It is so.", ENDS[api])
            assert shown.output_tokens == 3 + len("It is so.") + 1
            assert stage.metric("dovetail_recoveries_total", model=NAME, kind="empty") == 1
            assert stage.metric("dovetail_recovery_tokens_total", model=NAME, kind="dropped") == 3

    run(main)


@every_api
@both_ways
def test_a_loop(api: str, stream: bool) -> None:
    async def main() -> None:
        async with recovering() as stage:
            stage.engine.plan = stage.engine.script(LOOP)
            shown = await APIS[api](stage, stream)
            assert shown.stop == ENDS[api]
            assert 300 <= len(shown.text) < 450
            assert stage.metric("dovetail_recoveries_total", model=NAME, kind="loop") == 1
            await stage.engine.closed.wait()
            assert stage.engine.deltas_sent < len(LOOP) / 3

    run(main)


@every_api
@both_ways
def test_a_loop_of_calls_ends_with_complete_calls(api: str, stream: bool) -> None:
    ends = {"messages": "tool_use", "responses": "completed", "chat": "tool_calls"}

    async def main() -> None:
        async with recovering() as stage:
            stage.engine.plan = stage.engine.script(f"{CALL}\n" * 60)
            shown = await APIS[api](stage, stream)
            assert shown.stop == ends[api]
            assert 3 < len(shown.calls) < 20

    run(main)


def test_reports_are_a_header_or_a_comment() -> None:
    body: dict[str, Any] = {"model": NAME, "max_tokens": 2000, "messages": USER}

    async def main() -> None:
        async with recovering(THINKING_TEMPLATE) as stage:
            stage.engine.plan = stage.engine.script("Hm", "It is so.")
            whole = await stage.request("POST", "/v1/messages", body)
            assert whole.headers["x-dovetail-diagnostics"] == "recovered:reasoning"
        async with recovering(THINKING_TEMPLATE) as stage:
            first, second = stage.engine.script("Hm, well."), stage.engine.script("It is so.")

            async def slowly(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                async for delta in (first if len(stage.engine.requests) == 1 else second)(request):
                    yield delta
                    await asyncio.sleep(0.02)  # the head of the response is sent meanwhile

            stage.engine.plan = slowly
            streamed = await stage.request("POST", "/v1/messages", {**body, "stream": True})
            assert b": x-dovetail-diagnostics: recovered:reasoning\n\n" in streamed.body

    run(main)


def test_a_disconnect_during_the_continuation_cancels_it() -> None:
    async def main() -> None:
        async with recovering(THINKING_TEMPLATE, kinds=("reasoning",)) as stage:
            texts = stage.engine.script("Hm", "It is so.")

            async def hangs(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                async for delta in texts(request):
                    if len(stage.engine.requests) == 2 and delta.finish is not None:
                        await asyncio.Event().wait()
                    yield delta

            stage.engine.plan = hangs
            body: Any = {"model": NAME, "max_tokens": 4000, "messages": USER}
            async with stage.anthropic().messages.stream(**body) as events:
                async for event in events:
                    if event.type == "text":
                        break
            line = await stage.ended.get()
            assert line["status"] == 499
            assert len(stage.engine.requests) == 2
            assert stage.engine.running == 0

    run(main)


def test_text_completions_are_not_recovered() -> None:
    async def main() -> None:
        async with recovering() as stage:
            stage.engine.plan = stage.engine.script("\n", "never")
            completion = await stage.openai().completions.create(model=NAME, prompt="x")
            assert completion.choices[0].text.strip() == ""
            assert len(stage.engine.requests) == 1

    run(main)
