"""The official SDKs as clients of every API, streaming and non-streaming."""

import json
from typing import Any

import pytest
from http_fixture import ALIAS, CALL, NAME, Stage, run, serving

ANTHROPIC_TOOL: Any = {
    "name": "look_up",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FUNCTION: Any = {
    "name": "look_up",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CHAT_TOOL: Any = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL: Any = {"type": "function", "strict": False, **FUNCTION}
THINKS = "<think>\nWhich city?\n</think>\n\nLet me see. "
QUESTION: Any = [{"role": "user", "content": "How is the weather?"}]


def test_messages_streamed() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(THINKS + CALL, cached=16)
            params: Any = {"model": NAME, "max_tokens": 500, "messages": QUESTION}
            async with stage.anthropic().messages.stream(
                **params, tools=[ANTHROPIC_TOOL]
            ) as stream:
                message = await stream.get_final_message()
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
            thinking, text, use = message.content
            assert thinking.type == "thinking"
            assert thinking.signature
            assert text.type == "text"
            assert text.text.strip() == "Let me see."
            assert use.type == "tool_use"
            assert use.input == {"city": "Oslo"}
            assert use.id.removeprefix("toolu_").isalnum()
            assert message.stop_reason == "tool_use"
            assert message.model == NAME
            prompt = len(stage.engine.requests[0].prompt)
            assert message.usage.cache_read_input_tokens == 16
            assert message.usage.input_tokens == prompt - 16

    run(scene)


def test_messages_non_streaming_under_an_alias() -> None:
    async def scene() -> None:
        async with serving() as stage:
            message = await stage.anthropic().messages.create(
                model=ALIAS, max_tokens=500, messages=QUESTION
            )
            assert message.model == ALIAS
            assert message.content[0].type == "text"
            assert message.content[0].text == "Hello."
            assert message.stop_reason == "end_turn"

    run(scene)


def test_messages_second_turn_continues_the_first() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(THINKS + CALL, "It rains.")
            client = stage.anthropic()
            params: Any = {"model": NAME, "max_tokens": 500, "tools": [ANTHROPIC_TOOL]}
            first = await client.messages.create(**params, messages=QUESTION)
            result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}
            history = [
                *QUESTION,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            debug = {"x-dovetail-debug": "prefix, notes"}
            raw = await client.messages.with_raw_response.create(
                **params, messages=history, extra_headers=debug
            )
            output_ids = stage.engine.tokenizer.encode(THINKS + CALL)
            begun = [*stage.engine.requests[0].prompt, *output_ids]
            assert list(stage.engine.requests[1].prompt[: len(begun)]) == begun
            assert int(raw.headers["x-dovetail-prefix-total"]) == len(
                stage.engine.requests[1].prompt
            )
            assert "x-dovetail-diagnostics" in raw.headers
            assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="exact") == 1

    run(scene)


def test_chat_streaming_and_non_streaming() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(THINKS + CALL)
            client = stage.openai()
            params: Any = {"model": NAME, "messages": QUESTION, "tools": [CHAT_TOOL]}
            whole = await client.chat.completions.create(**params)
            choice = whole.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.tool_calls is not None
            call: Any = choice.message.tool_calls[0]
            assert json.loads(call.function.arguments) == {"city": "Oslo"}
            assert call.id.startswith("call_")
            async with client.chat.completions.stream(**params) as stream:
                streamed = await stream.get_final_completion()
            again: Any = streamed.choices[0].message
            assert again.content == choice.message.content
            assert again.tool_calls[0].function.arguments == call.function.arguments
            assert again.tool_calls[0].id != call.id

    run(scene)


def test_chat_choices_are_returned_together() -> None:
    async def scene() -> None:
        async with serving() as stage:
            response = await stage.openai().chat.completions.create(
                model=NAME, messages=QUESTION, n=3
            )
            assert [choice.message.content for choice in response.choices] == ["Hello."] * 3
            assert len(stage.engine.requests) == 3

    run(scene)


def test_responses_streaming_and_non_streaming() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(THINKS + CALL)
            client = stage.openai()
            params: Any = {"model": NAME, "input": "How is the weather?", "tools": [RESPONSES_TOOL]}
            whole = await client.responses.create(**params)
            kinds = [item.type for item in whole.output]
            assert kinds == ["reasoning", "message", "function_call"]
            assert whole.status == "completed"
            async with client.responses.stream(**params) as stream:
                events = [event.type async for event in stream]
                streamed = await stream.get_final_response()
            assert events[0] == "response.created"
            assert events[-1] == "response.completed"
            assert [item.type for item in streamed.output] == kinds
            assert streamed.usage is not None
            assert streamed.usage.input_tokens == len(stage.engine.requests[1].prompt)

    run(scene)


@pytest.mark.parametrize("prompt", ["<|im_start|>a", [256, 97]])
def test_completion_continues_a_raw_prompt(prompt: Any) -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("<think>b</think>c stop d")
            controls = stage.engine.tokenizer.controls
            letter = stage.engine.tokenizer.encode("a")
            ids = [controls["<|im_start|>"], *letter]
            given = prompt if isinstance(prompt, str) else ids
            client = stage.openai()
            response = await client.completions.create(model=NAME, prompt=given, stop=" stop")
            assert response.choices[0].text == "<think>b</think>c"
            assert list(stage.engine.requests[0].prompt) == ids
            stream = await client.completions.create(model=NAME, prompt=given, stream=True)
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].text for c in chunks) == "<think>b</think>c stop d"
            assert chunks[-1].choices[0].finish_reason == "stop"

    run(scene)


def test_count_tokens_equals_the_prompt_of_the_engine() -> None:
    async def scene() -> None:
        async with serving() as stage:
            client = stage.anthropic()
            params: Any = {"model": NAME, "messages": QUESTION, "tools": [ANTHROPIC_TOOL]}
            count = await client.messages.count_tokens(**params)
            await client.messages.create(**params, max_tokens=9)
            assert count.input_tokens == len(stage.engine.requests[0].prompt)

    run(scene)


def test_models_in_both_dialects() -> None:
    async def scene() -> None:
        async with serving(count=3) as stage:
            listed = await stage.openai().models.list()
            names = [NAME, "second-name", "model-1", "model-2", ALIAS]
            assert [model.id for model in listed.data] == names
            one: Any = await stage.openai().models.retrieve(NAME)
            assert (one.id, one.max_model_len, one.created) == (NAME, 4096, 1_700_000_000)
            client = stage.anthropic()
            page = await client.models.list(limit=3)
            assert page.has_more
            assert [model.id async for model in client.models.list(limit=3)] == names
            info = await client.models.retrieve(ALIAS)
            assert (info.id, info.max_input_tokens, info.type) == (ALIAS, 4096, "model")

    run(scene)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_detokenize(prefix: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            params: dict[str, Any] = {"prompt": "hé<|im_end|>", "return_token_strs": True}
            found = (await stage.request("POST", f"{prefix}/tokenize", params)).json
            assert found["count"] == len(found["tokens"]) == 4
            assert found["token_strs"][-1] == "<|im_end|>"
            assert found["max_model_len"] == 4096
            back = await stage.request("POST", f"{prefix}/detokenize", {"tokens": found["tokens"]})
            assert back.json == {"prompt": "hé<|im_end|>"}
            bad = await stage.request("POST", f"{prefix}/detokenize", {"tokens": [10**9]})
            assert bad.status == 400

    run(scene)


def test_tokenize_of_messages_is_the_prompt() -> None:
    async def scene() -> None:
        async with serving() as stage:
            params = {"messages": QUESTION, "tools": [CHAT_TOOL]}
            found = (await stage.request("POST", "/tokenize", params)).json
            await _chat(stage, params)
            assert found["tokens"] == list(stage.engine.requests[0].prompt)

    run(scene)


async def _chat(stage: Stage, params: dict[str, Any]) -> None:
    reply = await stage.request("POST", "/v1/chat/completions", {"model": NAME, **params})
    assert reply.status == 200
