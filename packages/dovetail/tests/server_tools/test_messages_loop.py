"""Server tools within a response of the Messages API, as the official SDK reads it."""

from typing import Any

from http_fixture import NAME, Stage
from server_tools_fixture import (
    CLIENT_TOOL,
    SEARCH,
    SEARCH_TOOL,
    StubProvider,
    assert_exact,
    call,
    create_tools,
    prompt_text,
    run_served,
)

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.search import FoundPage

QUESTION: dict[str, Any] = {"role": "user", "content": "Weather in Oslo?"}
REASONING = "<think>\nI must search.\n</think>\n\n"
FINAL = "It rains in Oslo [1], until noon [1, 2]. See also [9]."


async def stream(stage: Stage, history: list[Any], tools: Any = (SEARCH_TOOL,), **more: Any) -> Any:
    client = stage.anthropic()
    async with client.messages.stream(
        model=NAME, max_tokens=2048, messages=history, tools=list(tools), **more
    ) as reading:
        return await reading.get_final_message()


def replay(message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": message.model_dump(exclude_none=True)["content"]}


def test_search_is_part_of_the_stream() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(REASONING + "Searching." + SEARCH, FINAL)
        message = await stream(stage, [QUESTION])
        assert [block.type for block in message.content] == [
            "thinking",
            "text",
            "server_tool_use",
            "web_search_tool_result",
            "text",
        ]
        use, result = message.content[2], message.content[3]
        assert use.name == "web_search"
        assert use.input == {"query": "weather Oslo"}
        assert use.id.startswith("srvtoolu_")
        assert result.tool_use_id == use.id
        assert [page.url for page in result.content] == [page.url for page in provider.pages]
        assert result.content[0].title == "Weather in Oslo"
        assert result.content[0].page_age == "1 day ago"
        assert "Rain" not in result.content[0].encrypted_content
        text = message.content[4]
        assert text.text == FINAL
        assert [(c.type, c.url) for c in text.citations] == [
            ("web_search_result_location", provider.pages[0].url),
            ("web_search_result_location", provider.pages[0].url),
            ("web_search_result_location", provider.pages[1].url),
        ]
        assert text.citations[0].cited_text == "Rain, 7 degrees."
        assert message.stop_reason == "end_turn"
        assert message.usage.server_tool_use.web_search_requests == 1
        prompts = [len(request.prompt) for request in stage.engine.requests]
        assert message.usage.input_tokens == sum(prompts)

    run_served(main, create_tools(provider))


def test_response_without_stream_has_the_same_blocks() -> None:
    async def main(stage: Stage) -> None:
        plan = stage.engine.script(REASONING + SEARCH, FINAL, REASONING + SEARCH, FINAL)
        stage.engine.plan = plan
        streamed = await stream(stage, [QUESTION])
        whole = await stage.anthropic().messages.create(
            model=NAME,
            max_tokens=1024,
            messages=[QUESTION],  # type: ignore[list-item]
            tools=[SEARCH_TOOL],  # type: ignore[list-item]
        )
        assert [block.type for block in whole.content] == [b.type for b in streamed.content]
        last: Any = whole.content[-1]
        assert last.citations == streamed.content[-1].citations
        assert whole.usage.server_tool_use == streamed.usage.server_tool_use

    run_served(main)


def test_model_reads_numbered_results() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, FINAL)
        await stream(stage, [QUESTION])
        assert (
            "[1] Weather in Oslo\nhttps://example.com/oslo\nDate: 1 day ago\nRain, 7 degrees.\n\n"
            "[2] Oslo today\nhttps://weather.example.org/no/oslo\nRain until noon."
        ) in prompt_text(stage)

    run_served(main)


def test_turns_are_exact_within_and_after_the_response() -> None:
    outputs = [REASONING + "Searching." + SEARCH, SEARCH, FINAL, "You are welcome."]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs)
        message = await stream(stage, [QUESTION])
        thanks = {"role": "user", "content": "Thanks."}
        await stream(stage, [QUESTION, replay(message), thanks])
        assert len(stage.engine.requests) == 4
        assert_exact(stage, outputs)
        assert "[3] Weather in Oslo" in prompt_text(stage)

    run_served(main)


def test_turns_are_exact_after_a_restart() -> None:
    """Another process has the same keys, but neither the ledger nor the cache of results."""
    outputs = [REASONING + SEARCH, FINAL, "You are welcome."]
    found: list[Any] = []
    prompts: list[Any] = []

    async def first(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs)
        found.append(await stream(stage, [QUESTION]))
        prompts.extend(request.prompt for request in stage.engine.requests)

    async def second(stage: Stage) -> None:
        thanks = {"role": "user", "content": "Thanks."}
        await stream(stage, [QUESTION, replay(found[0]), thanks])
        known = [*prompts[-1], *stage.engine.tokenizer.encode(FINAL)]
        assert list(stage.engine.requests[0].prompt[: len(known)]) == known

    run_served(first)
    run_served(second)


def test_results_of_another_tenant_or_server_are_shown_by_title() -> None:
    async def main(stage: Stage) -> None:
        page = {
            "type": "web_search_result",
            "url": "https://example.com/x",
            "title": "X",
            "encrypted_content": TextSealer(Keyring([bytes(31) + b"x"])).seal("secret", ""),
        }
        history = [
            QUESTION,
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search",
                     "input": {"query": "x"}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
                     "content": [page]},
                    {"type": "text", "text": "Rain."},
                ],
            },
            {"role": "user", "content": "Thanks."},
        ]  # fmt: skip
        await stream(stage, history)
        text = prompt_text(stage)
        assert "X\nhttps://example.com/x" in text
        assert "secret" not in text

    run_served(main)


def test_limit_of_uses_is_an_error_for_the_model() -> None:
    provider = StubProvider()

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, SEARCH, "Done.")
        message = await stream(stage, [QUESTION], [{**SEARCH_TOOL, "max_uses": 1}])
        second = message.content[3]
        assert second.type == "web_search_tool_result"
        assert second.content.error_code == "max_uses_exceeded"
        assert len(provider.queries) == 1
        assert message.usage.server_tool_use.web_search_requests == 1
        assert "Error: web_search failed: max_uses_exceeded" in prompt_text(stage)
        history = [QUESTION, replay(message), {"role": "user", "content": "Thanks."}]
        await stream(stage, history)
        assert_exact(stage, [SEARCH, SEARCH, "Done."])

    run_served(main, create_tools(provider))


def test_errors_have_the_codes_of_the_api() -> None:
    async def main(stage: Stage) -> None:
        for output, error, code in (
            (SEARCH, "too_many_requests", "too_many_requests"),
            (SEARCH, "unavailable", "unavailable"),
            (call("web_search", query="x" * 1100), None, "query_too_long"),
            (call("web_search", text="x"), None, "invalid_tool_input"),
        ):
            provider.error = error
            stage.engine.requests.clear()
            stage.engine.plan = stage.engine.script(output, "Done.")
            message = await stream(stage, [QUESTION])
            assert message.content[1].content.error_code == code
            assert message.stop_reason == "end_turn"
            assert stage.metric(
                "dovetail_server_tool_seconds_count", tool="web_search", outcome=code
            )

    provider = StubProvider()
    run_served(main, create_tools(provider))


def test_search_without_results() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Nothing.")
        message = await stream(stage, [QUESTION])
        assert message.content[1].content == []
        await stream(stage, [QUESTION, replay(message), QUESTION])
        assert_exact(stage, [SEARCH, "Nothing."])
        assert "No results." in prompt_text(stage)

    run_served(main, create_tools(StubProvider(pages=())))


def test_domains_and_location_reach_the_provider_and_filter_its_results() -> None:
    pages = tuple(
        FoundPage(url, "t")
        for url in (
            "https://example.com/a",
            "https://sub.example.com/b",
            "https://notexample.com/c",
            "https://docs.example.org/api/d",
            "https://docs.example.org/blog/e",
            "ftp://example.com/f",
        )
    )
    provider = StubProvider(pages)

    async def main(stage: Stage) -> None:
        for field, domains, expected in (
            ("allowed_domains", ["example.com", "docs.example.org/api"], [0, 1, 3]),
            ("blocked_domains", ["example.com", "docs.example.org/api"], [2, 4]),
        ):
            stage.engine.requests.clear()
            stage.engine.plan = stage.engine.script(SEARCH, "Done.")
            location = {"type": "approximate", "country": "NO"}
            tool = {**SEARCH_TOOL, field: domains, "user_location": location}
            message = await stream(stage, [QUESTION], [tool])
            urls = [page.url for page in message.content[1].content]
            assert urls == [pages[at].url for at in expected]
            assert getattr(provider.queries[-1], field) == tuple(domains)
            assert provider.queries[-1].user_location == location

    run_served(main, create_tools(provider))


def test_calls_of_both_kinds_end_the_response_with_tool_use() -> None:
    both = SEARCH + "\n" + call("look_up", city="Oslo")

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(both, "Done.")
        tools = [SEARCH_TOOL, CLIENT_TOOL]
        message = await stream(stage, [QUESTION], tools)
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == [
            "server_tool_use",
            "tool_use",
            "web_search_tool_result",
        ]
        result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "7 C"}
        history = [QUESTION, replay(message), {"role": "user", "content": [result]}]
        message = await stream(stage, history, tools)
        assert message.content[0].text == "Done."
        assert_exact(stage, [both])
        text = prompt_text(stage)
        assert "Weather in Oslo" in text
        assert "7 C" in text

    run_served(main)


def test_limit_of_turns_pauses_and_the_client_continues() -> None:
    outputs = [SEARCH, SEARCH, FINAL]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs)
        message = await stream(stage, [QUESTION])
        assert message.stop_reason == "pause_turn"
        assert message.content[-1].type == "web_search_tool_result"
        message = await stream(stage, [QUESTION, replay(message)])
        assert message.stop_reason == "end_turn"
        assert message.content[0].text == FINAL
        assert len(message.content[0].citations) == 3
        assert_exact(stage, outputs)

    run_served(main, create_tools(max_turns=2))


def test_required_search_is_required_only_in_the_first_turn() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, FINAL)
        choice = {"type": "tool", "name": "web_search"}
        message = await stream(stage, [QUESTION], tool_choice=choice)
        assert message.stop_reason == "end_turn"
        first, second = stage.engine.requests
        assert first.constraint is not None
        assert second.constraint is None

    run_served(main)


def test_max_tokens_limits_the_whole_response() -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, FINAL)
        await stream(stage, [QUESTION])
        first, second = stage.engine.requests
        used = len(stage.engine.tokenizer.encode(SEARCH)) + 1
        assert (first.max_tokens, second.max_tokens) == (2048, 2048 - used)

    run_served(main)


def test_ledger_is_shared_with_requests_without_a_search() -> None:
    """A conversation may begin and continue without searches."""
    outputs = ["Hello.", SEARCH, FINAL]

    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(*outputs)
        hello = await stream(stage, [{"role": "user", "content": "Hi."}])
        await stream(stage, [{"role": "user", "content": "Hi."}, replay(hello), QUESTION])
        assert_exact(stage, outputs)

    run_served(main, ledger=Ledger(MemoryLedgerStore()))
