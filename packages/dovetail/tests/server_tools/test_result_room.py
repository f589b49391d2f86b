"""Results that are larger than the context window leaves room for."""

from typing import Any

import pytest
from http_fixture import NAME, Stage, run, serving
from server_tools_fixture import (
    FETCH_TOOL,
    SEARCH,
    SEARCH_TOOL,
    StubClient,
    StubProvider,
    assert_exact,
    call,
    create_tools,
    prompt_text,
)

from dovetail.server_tools.result_room import OMITTED_TEXT, ContextWindow, ResultRoom
from dovetail.server_tools.search import FoundPage

URL = "https://example.com/page"
QUESTION: dict[str, Any] = {"role": "user", "content": f"Weather? {URL}"}
PAGES = tuple(
    FoundPage(f"https://example.com/{at}", f"Page {at}", "rain and snow " * 140) for at in range(9)
)


class LongClient(StubClient):
    body = b"<p>" + b"rain and snow " * 4000


async def stream(stage: Stage, history: list[Any]) -> Any:
    tools: Any = [SEARCH_TOOL, FETCH_TOOL]
    async with stage.anthropic().messages.stream(
        model=NAME, max_tokens=1024, messages=history, tools=tools
    ) as reading:
        return await reading.get_final_message()


@pytest.mark.parametrize("output", [SEARCH, call("web_fetch", url=URL)])
def test_results_are_shortened_to_the_window(output: str) -> None:
    async def main() -> None:
        tools = create_tools(StubProvider(PAGES), client=LongClient())
        async with serving(server_tools=tools, max_context=4096) as stage:
            stage.engine.plan = stage.engine.script(output, "Rain.", "Bye.")
            message = await stream(stage, [QUESTION])
            assert message.stop_reason == "end_turn"
            assert message.content[-1].text == "Rain."
            assert OMITTED_TEXT in prompt_text(stage)
            assert 2048 < len(stage.engine.requests[-1].prompt) < 4096
            replayed = message.model_dump(exclude_none=True)["content"]
            bye = {"role": "user", "content": "Bye."}
            await stream(stage, [QUESTION, {"role": "assistant", "content": replayed}, bye])
            assert_exact(stage, [output, "Rain."])

    run(main)


def test_response_ends_if_there_is_no_room_for_another_turn() -> None:
    async def main() -> None:
        tools = create_tools(StubProvider(PAGES), client=LongClient())
        async with serving(server_tools=tools, max_context=4096) as stage:
            stage.engine.plan = stage.engine.script(SEARCH, "Rain.")
            await stream(stage, [QUESTION])
            used = len(stage.engine.requests[0].prompt) + len(stage.engine.tokenizer.encode(SEARCH))
        async with serving(server_tools=tools, max_context=used + 8) as stage:
            stage.engine.plan = stage.engine.script(SEARCH, "Rain.")
            message = await stream(stage, [QUESTION])
            assert message.content[1].content.error_code == "unavailable"
            assert message.stop_reason == "model_context_window_exceeded"

    run(main)


def test_parts_are_dropped_behind_a_shortened_one() -> None:
    room = ResultRoom(100, count=len)
    assert room.fit_parts(["a" * 60, "b" * 60, "c"]) == ["a" * 60, room.fit("b" * 60, 40)]
    assert len(room.fit("b" * 60, 40) or "") <= 40
    assert room.fit_parts(["a" * 90, "b" * 60]) == ["a" * 90]


def test_parts_are_measured_in_tokens() -> None:
    parts = ["a" * 160, "b" * 160]
    assert ResultRoom(200, count=lambda text: len(text) // 4).fit_parts(parts) == parts


def test_room_is_shared_by_the_results_of_a_turn() -> None:
    assert ContextWindow(4096).room_after(1000, 2).tokens == (4096 - 1000 - 512) // 2
    assert ContextWindow(4096).room_after(5000, 1).tokens == 0
