"""A client tool that has the name of a server tool."""

from typing import Any

from http_fixture import NAME, Stage
from server_tools_fixture import (
    CLIENT_TOOL,
    SEARCH_TOOL,
    assert_exact,
    call,
    prompt_text,
    run_served,
)

SEARCH = call("server_web_search", query="weather Oslo")
OUTPUTS = [SEARCH, "Rain [1].", SEARCH, "Still rain [3]."]


def test_replayed_calls_have_the_name_that_the_model_used_in_messages() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*OUTPUTS)
        tools: Any = [SEARCH_TOOL, {**CLIENT_TOOL, "name": "web_search"}]
        history: Any = [{"role": "user", "content": "Weather?"}]
        for _ in range(2):
            message = await stage.anthropic().messages.create(
                model=NAME, max_tokens=1024, messages=history, tools=tools
            )
            content = message.model_dump(exclude_none=True)["content"]
            history += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": "And now?"},
            ]
        assert content[-1]["citations"][0]["url"] == "https://example.com/oslo"
        assert "[3] Weather in Oslo" in prompt_text(stage)
        assert_exact(stage, OUTPUTS)

    run_served(main)


def test_replayed_calls_have_the_name_that_the_model_used_in_responses() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*OUTPUTS)
        function = {"type": "function", "name": "web_search", "parameters": {"type": "object"}}
        tools: Any = [{"type": "web_search"}, function]
        history: Any = [{"role": "user", "content": "Weather?"}]
        for _ in range(2):
            response = await stage.openai().responses.create(
                model=NAME, input=history, tools=tools, store=False
            )
            history += [item.model_dump(exclude_none=True) for item in response.output]
            history.append({"role": "user", "content": "And now?"})
        assert "[3] Weather in Oslo" in prompt_text(stage)
        assert_exact(stage, OUTPUTS)

    run_served(main)
