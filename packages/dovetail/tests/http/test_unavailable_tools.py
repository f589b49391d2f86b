"""Server tools that the server cannot run: the request fails, or the model is informed."""

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, Stage, run, serving

SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
TOOL: dict[str, Any] = {"name": "look_up", "input_schema": {"type": "object"}}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object"},
    "strict": False,
}
NOTICE = "These tools are not available on this server: "


def run_served(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving() as stage:
            await scene(stage)

    run(main)


async def create(client: anthropic.AsyncAnthropic, tools: Any, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Search."}]
    return await client.messages.create(
        model=NAME, max_tokens=64, messages=messages, tools=tools, **more
    )


def prompt_text(stage: Stage, at: int = -1) -> str:
    return str(stage.engine.tokenizer.decode(stage.engine.requests[at].prompt))


@pytest.mark.parametrize("type", ["web_search_20250305", "web_fetch_20250910", "computer_20250124"])
def test_messages_with_only_server_tools_fails(type: str) -> None:
    async def main(stage: Stage) -> None:
        client = stage.anthropic()
        with pytest.raises(anthropic.BadRequestError) as failed:
            await create(client, [{"type": type, "name": "tool"}])
        assert failed.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        assert f"'{type}' is not available" in failed.value.message
        assert not stage.engine.requests

    run_served(main)


@pytest.mark.parametrize(
    "type", ["web_search", "web_search_preview", "file_search", "code_interpreter"]
)
def test_responses_with_only_server_tools_fails(type: str) -> None:
    async def main(stage: Stage) -> None:
        tools: Any = [{"type": type}]
        with pytest.raises(openai.BadRequestError) as failed:
            await stage.openai().responses.create(model=NAME, input="Search.", tools=tools)
        assert f"'{type}' is not available" in failed.value.message
        assert failed.value.param == "tools[0]"

    run_served(main)


def test_model_is_informed_at_the_end_of_the_prompt_once() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script("First.", "Second.")
        history: list[dict[str, Any]] = [{"role": "user", "content": "Search."}]
        tools = [SEARCH, TOOL]
        for text in ("First.", "Second."):
            reply = await stage.request(
                "POST",
                "/v1/messages",
                {"model": NAME, "max_tokens": 64, "messages": history, "tools": tools},
                x_dovetail_debug="notes",
            )
            assert reply.status == 200
            assert reply.json["content"][0]["text"] == text
            assert "tool_unavailable:web_search" in reply.headers["x-dovetail-diagnostics"]
            history += [
                {"role": "assistant", "content": reply.json["content"]},
                {"role": "user", "content": "More."},
            ]
        first, second = prompt_text(stage, 0), prompt_text(stage, 1)
        assert "Search.\n\n" + NOTICE + "web_search<|im_end|>" in first
        assert second.startswith(first)
        assert second.count(NOTICE) == 1
        assert '"web_search"' not in second  # it is not offered

    run_served(main)


def test_model_of_the_responses_api_is_informed() -> None:
    async def main(stage: Stage) -> None:
        interpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
        tools: Any = [{"type": "web_search"}, FUNCTION, interpreter]
        await stage.openai().responses.create(model=NAME, input="Search.", tools=tools)
        assert NOTICE + "web_search, code_interpreter<|im_end|>" in prompt_text(stage)

    run_served(main)


def test_required_tool_that_is_unavailable_fails() -> None:
    async def main(stage: Stage) -> None:
        choice = {"type": "tool", "name": "web_search"}
        with pytest.raises(anthropic.BadRequestError, match=r"tool_choice: .*is not available"):
            await create(stage.anthropic(), [SEARCH, TOOL], tool_choice=choice)
        assert not stage.engine.requests

    run_served(main)


@pytest.mark.parametrize("type", ["web_search", "file_search"])
@pytest.mark.parametrize("listed", [False, True])
def test_required_tool_of_responses_that_is_unavailable_fails(type: str, listed: bool) -> None:
    async def main(stage: Stage) -> None:
        tools: Any = [{"type": type}, FUNCTION]
        choice: Any = {"type": type}
        if listed:
            choice = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
        with pytest.raises(openai.BadRequestError) as failed:
            await stage.openai().responses.create(
                model=NAME, input="Search.", tools=tools, tool_choice=choice
            )
        assert f"'{type}' is not available" in failed.value.message
        assert failed.value.param == "tool_choice"

    run_served(main)


def test_deferred_tools_of_an_unavailable_search_are_shown() -> None:
    async def main(stage: Stage) -> None:
        search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
        reply = await stage.request(
            "POST",
            "/v1/messages",
            {
                "model": NAME,
                "max_tokens": 64,
                "messages": [{"role": "user", "content": "Search."}],
                "tools": [search, {**TOOL, "defer_loading": True}],
                "tool_choice": {"type": "tool", "name": "look_up"},
            },
        )
        assert reply.status == 200
        assert '"look_up"' in prompt_text(stage)
        notes = reply.headers["x-dovetail-diagnostics"]
        assert "tool_unavailable:tool_search_tool_regex" in notes
        assert "ignored:tools[].defer_loading" in notes

    run_served(main)


def test_request_with_only_deferred_tools_is_reported() -> None:
    async def main(stage: Stage) -> None:
        raw = await stage.anthropic().messages.with_raw_response.create(
            model=NAME,
            max_tokens=64,
            messages=[{"role": "user", "content": "Search."}],
            tools=[{**TOOL, "defer_loading": True}],  # type: ignore[list-item]
        )
        assert "tools_deferred" in raw.headers["x-dovetail-diagnostics"]

    run_served(main)


def test_count_of_tokens_includes_the_notice() -> None:
    async def main(stage: Stage) -> None:
        client = stage.anthropic()
        messages: Any = [{"role": "user", "content": "Search."}]
        both: Any = [SEARCH, TOOL]
        counted = await client.messages.count_tokens(model=NAME, messages=messages, tools=both)
        await client.messages.create(model=NAME, max_tokens=8, messages=messages, tools=both)
        assert counted.input_tokens == len(stage.engine.requests[-1].prompt)

    run_served(main)
