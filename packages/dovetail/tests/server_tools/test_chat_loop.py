"""Web searches within a response of the Chat Completions API, as the official SDK reads it."""

from typing import Any

import openai
import pytest
from http_fixture import NAME, Stage, run, serving
from server_tools_fixture import (
    SEARCH,
    StubProvider,
    assert_exact,
    call,
    create_tools,
    prompt_text,
    run_served,
)

QUESTION: Any = {"role": "user", "content": "Weather in Oslo?"}
FUNCTION: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object"}},
}
FINAL = "It rains in Oslo [1], until noon [2]."


async def stream(stage: Stage, **more: Any) -> Any:
    async with stage.openai().chat.completions.stream(
        model=NAME, messages=[QUESTION], web_search_options={}, **more
    ) as reading:
        async for _ in reading:
            pass
        return await reading.get_final_completion()


def test_search_is_part_of_the_stream() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script("Searching." + SEARCH, FINAL)
        completion = await stream(stage, stream_options={"include_usage": True})
        message = completion.choices[0].message
        assert message.content == f"Searching.\n\n{FINAL}"
        assert not message.tool_calls
        cited = [annotation.url_citation for annotation in message.annotations]
        assert [one.url for one in cited] == [page.url for page in provider.pages]
        texts = [message.content[one.start_index : one.end_index] for one in cited]
        assert texts == ["[1]", "[2]"]
        assert completion.choices[0].finish_reason == "stop"
        prompts = [len(request.prompt) for request in stage.engine.requests]
        assert completion.usage.prompt_tokens == sum(prompts)
        assert_exact(stage, ["Searching." + SEARCH])

    run_served(main, create_tools(provider))


def test_response_without_stream_is_the_same() -> None:
    async def main(stage: Stage) -> None:
        plan = stage.engine.script("Searching." + SEARCH, FINAL, "Searching." + SEARCH, FINAL)
        stage.engine.plan = plan
        streamed = (await stream(stage)).choices[0].message
        whole = await stage.openai().chat.completions.create(
            model=NAME, messages=[QUESTION], web_search_options={}
        )
        message = whole.choices[0].message
        assert message.content == streamed.content
        assert message.annotations == streamed.annotations

    run_served(main)


def test_only_calls_of_the_client_are_shown() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, call("look_up", city="Oslo"))
        completion = await stream(stage, tools=[FUNCTION])
        (shown,) = completion.choices[0].message.tool_calls
        assert shown.function.name == "look_up"
        assert completion.choices[0].finish_reason == "tool_calls"

    run_served(main)


def test_location_reaches_the_provider() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, FINAL)
        location: Any = {"type": "approximate", "approximate": {"country": "NO"}}
        await stage.openai().chat.completions.create(
            model=NAME, messages=[QUESTION], web_search_options={"user_location": location}
        )
        assert provider.queries[0].user_location == {"country": "NO"}
        assert "Weather in Oslo" in prompt_text(stage)

    run_served(main, create_tools(provider))


def test_more_choices_are_rejected() -> None:
    async def main(stage: Stage) -> None:
        with pytest.raises(openai.BadRequestError, match="`n` must be 1"):
            await stage.openai().chat.completions.create(
                model=NAME, messages=[QUESTION], web_search_options={}, n=2
            )

    run_served(main)


def test_search_is_rejected_without_a_provider() -> None:
    async def main() -> None:
        async with serving() as stage:
            with pytest.raises(openai.BadRequestError, match="web_search_options"):
                await stage.openai().chat.completions.create(
                    model=NAME, messages=[QUESTION], web_search_options={}
                )

    run(main)


def test_model_with_other_tools_is_informed_without_a_provider() -> None:
    async def main() -> None:
        async with serving() as stage:
            raw = await stage.openai().chat.completions.with_raw_response.create(
                model=NAME, messages=[QUESTION], web_search_options={}, tools=[FUNCTION]
            )
            assert "tools are not available on this server: web_search" in prompt_text(stage)
            notes = raw.headers["x-dovetail-diagnostics"]
            assert "tool_unavailable:web_search" in notes
            assert "ignored:web_search_options" in notes

    run(main)


@pytest.mark.parametrize("search_first", [True, False])
def test_turn_ends_before_a_call_of_the_other_kind(search_first: bool) -> None:
    """The client returns only its own calls, so that a turn with both kinds cannot be exact."""
    provider = StubProvider()
    own = call("look_up", city="Oslo")

    async def main(stage: Stage) -> None:
        if search_first:
            stage.engine.plan = stage.engine.script(f"{SEARCH}\n{own}", "Rain [1].")
            message = (await stream(stage, tools=[FUNCTION])).choices[0].message
            assert not message.tool_calls
            assert len(provider.queries) == 1
            assert "Weather in Oslo" in prompt_text(stage)
            assert_exact(stage, [SEARCH])
            return
        stage.engine.plan = stage.engine.script(f"{own}\n{SEARCH}", "7 degrees.")
        completion = await stream(stage, tools=[FUNCTION])
        assert completion.choices[0].finish_reason == "tool_calls"
        message = completion.choices[0].message
        (shown,) = message.tool_calls
        assert not provider.queries
        result = {"role": "tool", "tool_call_id": shown.id, "content": "7 C"}
        history: Any = [QUESTION, message.model_dump(exclude_none=True), result]
        await stage.openai().chat.completions.create(
            model=NAME, messages=history, web_search_options={}, tools=[FUNCTION]
        )
        assert_exact(stage, [own])

    run_served(main, create_tools(provider))
