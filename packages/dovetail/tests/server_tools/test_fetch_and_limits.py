"""Pages within a response, time limits, dead providers and disconnects."""

import asyncio
from typing import Any

import anthropic
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
    run_served,
)

from dovetail.telemetry.record import RequestContents, RequestRecord

URL = "https://example.com/page"
FETCH = call("web_fetch", url=URL)
QUESTION: dict[str, Any] = {"role": "user", "content": f"Summarize {URL}."}


async def stream(stage: Stage, history: list[Any], tools: Any, **more: Any) -> Any:
    async with stage.anthropic().messages.stream(
        model=NAME, max_tokens=1024, messages=history, tools=list(tools), **more
    ) as reading:
        return await reading.get_final_message()


def replay(message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": message.model_dump(exclude_none=True)["content"]}


def test_page_is_fetched_within_the_response() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(FETCH, "Short.", "Bye.")
        message = await stream(stage, [QUESTION], [FETCH_TOOL])
        assert [block.type for block in message.content] == [
            "server_tool_use",
            "web_fetch_tool_result",
            "text",
        ]
        result = message.content[1].content
        assert result.type == "web_fetch_result"
        assert result.url == URL
        assert result.content.title == "A page"
        assert result.content.source.data == "Some text."
        assert message.usage.server_tool_use.web_fetch_requests == 1
        assert f"A page\n{URL}\nSome text." in prompt_text(stage)
        bye = {"role": "user", "content": "Bye."}
        await stream(stage, [QUESTION, replay(message), bye], [FETCH_TOOL])
        assert_exact(stage, [FETCH, "Short."])

    run_served(main, create_tools(client=StubClient()))


@pytest.mark.parametrize(
    ("url", "tool", "code"),
    [
        ("https://evil.example/?q=secret", {}, "url_not_in_prior_context"),
        (URL, {"allowed_domains": ["example.org"]}, "url_not_allowed"),
        (URL, {"blocked_domains": ["example.com"]}, "url_not_allowed"),
        (URL, {"max_uses": 0}, "max_uses_exceeded"),
    ],
)
def test_page_that_may_not_be_fetched(url: str, tool: dict[str, Any], code: str) -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(call("web_fetch", url=url), "Sorry.")
        message = await stream(stage, [QUESTION], [{**FETCH_TOOL, **tool}])
        assert message.content[1].content.error_code == code
        assert message.usage.server_tool_use is None  # nothing was fetched

    run_served(main, create_tools(client=StubClient()))


def test_found_page_may_be_fetched() -> None:
    async def main(stage: Stage) -> None:
        found = call("web_fetch", url="https://example.com/oslo")
        stage.engine.plan = stage.engine.script(SEARCH, found, "Rain.")
        question = {"role": "user", "content": "Weather?"}
        message = await stream(stage, [question], [SEARCH_TOOL, FETCH_TOOL])
        assert message.content[3].content.type == "web_fetch_result"

    run_served(main, create_tools(client=StubClient()))


def test_length_of_a_page_is_limited() -> None:
    class LongClient(StubClient):
        body = b"x" * 1000

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(FETCH, "Short.")
        tool = {**FETCH_TOOL, "max_content_tokens": 10}
        message = await stream(stage, [QUESTION], [tool])
        assert message.content[1].content.content.source.data.startswith("x" * 40 + "\n[the rest")

    run_served(main, create_tools(client=LongClient()))


def test_slow_provider_is_unavailable() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Sorry.")
        message = await stream(stage, [QUESTION], [SEARCH_TOOL])
        assert message.content[1].content.error_code == "unavailable"
        assert provider.cancelled == 1

    provider = StubProvider(wait=asyncio.Event())
    run_served(main, create_tools(provider, timeout_seconds=0.05))


def test_disconnect_cancels_a_search() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Done.")
        client = stage.anthropic()
        messages: Any = [QUESTION]
        tools: Any = [SEARCH_TOOL]
        async with client.messages.stream(
            model=NAME, max_tokens=64, messages=messages, tools=tools
        ) as reading:
            async for event in reading:
                if event.type == "content_block_stop":
                    break
        line = await stage.ended.get()
        assert line["status"] == 499
        assert provider.cancelled == 1
        assert len(stage.engine.requests) == 1

    provider = StubProvider(wait=asyncio.Event())
    run_served(main, create_tools(provider))


def test_failure_of_the_engine_after_a_search_ends_the_stream_with_an_error() -> None:
    async def main(stage: Stage) -> None:
        script = stage.engine.script(SEARCH)

        def plan(request: Any) -> Any:
            if len(stage.engine.requests) > 1:
                raise RuntimeError("broken engine")
            return script(request)

        stage.engine.plan = plan
        with pytest.raises(anthropic.APIStatusError):
            await stream(stage, [QUESTION], [SEARCH_TOOL])

    run_served(main)


def test_time_and_tokens_of_all_turns_are_in_the_record() -> None:
    records: list[RequestRecord] = []

    class Recorder:
        def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
            records.append(record)

        def close(self) -> None: ...

    async def main() -> None:
        async with serving(server_tools=create_tools(), recorders=[Recorder()]) as stage:
            stage.engine.plan = stage.engine.script(SEARCH, "Done.")
            await stream(stage, [QUESTION], [SEARCH_TOOL])
            await stage.ended.get()
            (record,) = records
            first, second = (len(request.prompt) for request in stage.engine.requests)
            assert record.usage is not None
            assert record.usage.input_tokens == first + second
            assert record.usage.web_searches == 1
            assert record.prefix is not None
            assert record.prefix.total == first + second
            assert record.prefix.lost == 0
            (call,) = record.calls
            assert call.name == "web_search"
            assert call.dispatched is not None
            assert call.returned is not None
            assert call.begin <= call.dispatched <= call.returned
            labels = {"tool": "web_search", "outcome": "ok"}
            assert stage.metric("dovetail_server_tool_seconds_count", **labels) == 1

    run(main)
