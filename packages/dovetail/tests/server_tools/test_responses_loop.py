"""Server tools within a response of the Responses API, as the official SDK reads it."""

from typing import Any

import pytest
from http_fixture import NAME, Stage
from server_tools_fixture import (
    SEARCH,
    StubClient,
    StubProvider,
    assert_exact,
    call,
    create_tools,
    prompt_text,
    run_served,
)

TOOL: dict[str, Any] = {"type": "web_search"}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object"},
    "strict": False,
}
QUESTION: dict[str, Any] = {"role": "user", "content": "Weather in Oslo?"}
REASONING = "<think>\nI must search.\n</think>\n\n"
FINAL = "It rains in Oslo [1], until noon [1, 2]. See also [9]."


async def respond(stage: Stage, input: Any, tools: Any = (TOOL,), **more: Any) -> tuple[Any, Any]:
    """Stream a response. Returns the response and the events."""
    events: list[Any] = []
    async with stage.openai().responses.stream(
        model=NAME, input=input, tools=list(tools), **more
    ) as reading:
        async for event in reading:
            events.append(event)  # noqa: PERF401 - typed by the SDK
        return await reading.get_final_response(), events


def replay(response: Any) -> list[Any]:
    return [item.model_dump(exclude_none=True) for item in response.output]


def test_search_is_part_of_the_stream() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(REASONING + SEARCH, FINAL)
        response, events = await respond(
            stage, [QUESTION], include=["web_search_call.action.sources"]
        )
        assert [item.type for item in response.output] == [
            "reasoning",
            "web_search_call",
            "reasoning",
            "message",
        ]
        search = response.output[1]
        assert search.status == "completed"
        assert search.action.query == "weather Oslo"
        assert [source.url for source in search.action.sources] == [p.url for p in provider.pages]
        states = [e.type for e in events if e.type.startswith("response.web_search_call.")]
        assert states == [
            "response.web_search_call.in_progress",
            "response.web_search_call.searching",
            "response.web_search_call.completed",
        ]
        sealed = response.output[2]
        assert sealed.summary == []
        assert "Rain" not in sealed.encrypted_content
        (part,) = response.output[3].content
        assert part.text == FINAL
        cited = [(part.text[a.start_index : a.end_index], a.url) for a in part.annotations]
        assert cited == [
            ("[1]", provider.pages[0].url),
            ("[1, 2]", provider.pages[0].url),
            ("[1, 2]", provider.pages[1].url),
        ]
        assert part.annotations[0].title == "Weather in Oslo"
        added = [e for e in events if e.type == "response.output_text.annotation.added"]
        assert [e.annotation_index for e in added] == [0, 1, 2]
        assert response.status == "completed"
        prompts = [len(request.prompt) for request in stage.engine.requests]
        assert response.usage.input_tokens == sum(prompts)

    run_served(main, create_tools(provider))


def test_response_without_stream_has_the_same_items() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, FINAL, SEARCH, FINAL)
        streamed, _ = await respond(stage, [QUESTION])
        tools: Any = [TOOL]
        whole = await stage.openai().responses.create(
            model=NAME, input="Weather in Oslo?", tools=tools
        )
        assert [item.type for item in whole.output] == [item.type for item in streamed.output]
        last: Any = whole.output[-1]
        assert last.content[0].annotations == streamed.output[-1].content[0].annotations
        search: Any = whole.output[0]
        assert (search.status, search.action.sources) == ("completed", None)

    run_served(main)


@pytest.mark.parametrize("strips_ids", [False, True])
def test_turns_are_exact_within_and_after_the_response(strips_ids: bool) -> None:
    """Codex returns searches without their ids."""
    outputs = [REASONING + SEARCH, SEARCH + "\n" + SEARCH, FINAL, "You are welcome."]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs)
        response, _ = await respond(stage, [QUESTION], store=False)
        items = replay(response)
        if strips_ids:
            items = [{k: v for k, v in item.items() if k != "id"} for item in items]
        await respond(stage, [QUESTION, *items, {"role": "user", "content": "Thanks."}])
        assert len(stage.engine.requests) == 4
        assert_exact(stage, outputs)

    run_served(main)


def test_turns_are_exact_after_a_restart() -> None:
    found: list[Any] = []
    prompts: list[Any] = []

    async def first(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(REASONING + SEARCH, FINAL)
        response, _ = await respond(stage, [QUESTION])
        found.extend(replay(response))
        prompts.extend(request.prompt for request in stage.engine.requests)

    async def second(stage: Stage) -> None:
        await respond(stage, [QUESTION, *found, {"role": "user", "content": "Thanks."}])
        known = [*prompts[-1], *stage.engine.tokenizer.encode(FINAL)]
        assert list(stage.engine.requests[0].prompt[: len(known)]) == known

    run_served(first)
    run_served(second)


def test_turns_are_exact_with_a_stored_response() -> None:
    outputs = [SEARCH, FINAL]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs, "Bye.")
        response, _ = await respond(stage, [QUESTION], store=True)
        await respond(stage, "Thanks.", previous_response_id=response.id)
        assert_exact(stage, outputs)

    run_served(main)


def test_page_that_the_model_opens_is_part_of_the_search() -> None:
    fetch = call("web_fetch", url="https://example.com/oslo")
    outputs = [SEARCH, fetch, "Rain."]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs, "Bye.")
        response, _ = await respond(stage, [QUESTION])
        opened = response.output[2]
        assert opened.type == "web_search_call"
        assert (opened.action.type, opened.action.url) == ("open_page", "https://example.com/oslo")
        thanks = {"role": "user", "content": "Thanks."}
        await respond(stage, [QUESTION, *replay(response), thanks])
        assert_exact(stage, outputs)

    run_served(main, create_tools(client=StubClient()))


def test_failed_search() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Sorry.", "Bye.")
        response, _ = await respond(stage, [QUESTION])
        assert response.output[0].status == "failed"
        assert response.status == "completed"
        thanks = {"role": "user", "content": "Thanks."}
        await respond(stage, [QUESTION, *replay(response), thanks])
        assert_exact(stage, [SEARCH, "Sorry."])
        assert "Error: web_search failed: unavailable" in prompt_text(stage)

    run_served(main, create_tools(StubProvider(error="unavailable")))


def test_max_tool_calls_limits_all_searches() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, SEARCH, "Done.")
        response, _ = await respond(stage, [QUESTION], max_tool_calls=1)
        assert [item.status for item in response.output if item.type == "web_search_call"] == [
            "completed",
            "failed",
        ]
        assert len(provider.queries) == 1

    run_served(main, create_tools(provider))


def test_limit_of_turns_ends_with_a_turn_without_tools() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, SEARCH, FINAL)
        response, _ = await respond(stage, [QUESTION])
        assert response.status == "completed"
        assert response.output_text == FINAL
        assert_exact(stage, [SEARCH, SEARCH])

    run_served(main, create_tools(max_turns=2))


def test_calls_of_both_kinds_end_the_response() -> None:
    both = SEARCH + "\n" + call("look_up", city="Oslo")

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(both, "Done.")
        response, _ = await respond(stage, [QUESTION], [TOOL, FUNCTION])
        assert [item.type for item in response.output] == [
            "web_search_call",
            "function_call",
            "reasoning",
        ]
        result = {
            "type": "function_call_output",
            "call_id": response.output[1].call_id,
            "output": "7 C",
        }
        await respond(stage, [QUESTION, *replay(response), result], [TOOL, FUNCTION])
        assert_exact(stage, [both])
        assert "Weather in Oslo" in prompt_text(stage)
        assert "7 C" in prompt_text(stage)

    run_served(main)


def test_filters_location_and_choice() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Done.")
        tool = {
            "type": "web_search",
            "filters": {"allowed_domains": ["example.org"]},
            "user_location": {"type": "approximate", "country": "NO"},
        }
        response, _ = await respond(
            stage,
            [QUESTION],
            [tool],
            tool_choice={"type": "web_search_preview"},
            include=["web_search_call.action.sources"],
        )
        sources = response.output[0].action.sources
        assert [source.url for source in sources] == [provider.pages[1].url]
        assert provider.queries[0].allowed_domains == ("example.org",)
        assert provider.queries[0].user_location == {"type": "approximate", "country": "NO"}
        first, second = stage.engine.requests
        assert first.constraint is not None
        assert second.constraint is None

    run_served(main, create_tools(provider))


def test_function_of_the_client_may_have_the_same_name() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(call("server_web_search", query="x"), "Done.")
        response, _ = await respond(stage, [QUESTION], [{**FUNCTION, "name": "web_search"}, TOOL])
        assert response.output[0].type == "web_search_call"

    run_served(main)


def test_search_of_another_server_is_text() -> None:
    async def main(stage: Stage) -> None:
        search = {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "Oslo"},
        }
        reply = {"role": "assistant", "content": "Rain."}
        await respond(stage, [QUESTION, search, reply, QUESTION])
        assert "[web_search_call" in prompt_text(stage)

    run_served(main)


def test_last_turn_runs_no_calls() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, f"No more. {SEARCH}")
        response, _ = await respond(stage, [QUESTION])
        assert response.status == "completed"
        assert response.output_text.strip() == "No more."
        assert sum(item.type == "web_search_call" for item in response.output) == 1
        assert len(provider.queries) == 1

    run_served(main, create_tools(provider, max_turns=1))
