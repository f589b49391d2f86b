"""OpenAI's agents library with both of its APIs: function tools, a handoff, a streamed run."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from prefix_exactness import ReportRun, assert_exact
from server_process import TIMEOUT_SECONDS, Running
from server_setup import MODEL, QWEN3_CODER, ServerSetup, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

#: Traces would be sent to the library's own server.
QUIET = RunConfig(tracing_disabled=True)
DONE = "In Köln, es sind 21° ✓"
CLERK = "You hand questions on to the meteorologist."
METEOROLOGIST = "You know the weather everywhere."
APIS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}

OUTPUTS: list[list[OutputBlock]] = [
    [
        think("Two cities: Oslo first."),
        call("weather", city="Oslo"),
        think("Now Köln, größer."),
        call("weather", city="Köln"),
    ],
    [think("One more, to be sure."), text("A moment."), call("weather", city="Zürich")],
    [think("Known now."), text(DONE)],
]
HANDED_ON: list[list[OutputBlock]] = [[think("Not mine."), call("transfer_to_meteorologist")]]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> ServerSetup:
    return server_setup(tmp_path_factory.mktemp("server"), QWEN3_CODER)


@pytest.fixture(scope="module")
def server(setup: ServerSetup) -> Iterator[Running]:
    clerk = {"when": {"text": CLERK}, "turns": turns(QWEN3_CODER, *HANDED_ON)}
    script = {"rules": [clerk], "turns": turns(QWEN3_CODER, *OUTPUTS), "end": "fail"}
    with setup.server(script) as running:
        yield running


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def question(request: pytest.FixtureRequest) -> str:
    """A question that only one test sends, which identifies its requests."""
    return f"Where is it warmer, in Oslo or in Köln? ({request.node.name})"


def test_agent_runs_its_tools(
    api: str, question: str, server: Running, setup: ServerSetup, report_run: ReportRun
) -> None:
    cities: list[str] = []

    async def use_model(model: Model) -> None:
        result = await Runner.run(_meteorologist(model, cities), question, run_config=QUIET)
        assert result.final_output == DONE

    _with_model(server, api, use_model)
    _assert_cities(cities)
    generations = [one for one in setup.generations if question in one.text]
    assert len(generations) == 3
    report_run(assert_exact(generations, new=1))


def test_streamed_run_has_its_items_in_order(
    api: str, question: str, server: Running, setup: ServerSetup, report_run: ReportRun
) -> None:
    cities: list[str] = []
    item_events: list[str] = []
    text: list[str] = []

    async def use_model(model: Model) -> None:
        run = Runner.run_streamed(_meteorologist(model, cities), question, run_config=QUIET)
        async for event in run.stream_events():
            if event.type == "run_item_stream_event":
                item_events.append(event.name)
            elif event.type == "raw_response_event":
                text.append(getattr(event.data, "delta", "") if _is_text(event.data) else "")
        assert run.final_output == DONE

    _with_model(server, api, use_model)
    _assert_cities(cities)
    assert "".join(text) == f"A moment.{DONE}"
    assert (item_events.count("tool_called"), item_events.count("tool_output")) == (3, 3)
    assert item_events[-1] == "message_output_created"
    generations = [one for one in setup.generations if question in one.text]
    assert len(generations) == 3
    report_run(assert_exact(generations, new=1))


def test_handoff_to_another_agent(
    api: str, question: str, server: Running, setup: ServerSetup, report_run: ReportRun
) -> None:
    """The second agent's prompt has another head: it is new, and contains the first one's turn."""
    cities: list[str] = []

    async def use_model(model: Model) -> None:
        second = _meteorologist(model, cities)
        first: Agent[None] = Agent("clerk", instructions=CLERK, model=model, handoffs=[second])
        result = await Runner.run(first, question, run_config=QUIET)
        assert (result.final_output, result.last_agent.name) == (DONE, "meteorologist")

    _with_model(server, api, use_model)
    _assert_cities(cities)
    generations = [one for one in setup.generations if question in one.text]
    assert [one.text.count(CLERK) for one in generations] == [1, 0, 0, 0]
    assert generations[0].output_text.removesuffix("<|im_end|>") in generations[1].text
    report_run(assert_exact(generations, new=2))


def _assert_cities(cities: list[str]) -> None:
    """The SDK runs the two calls of the first turn in threads, in any order."""
    assert (sorted(cities[:2]), cities[2:]) == (["Köln", "Oslo"], ["Zürich"])


def _meteorologist(model: Model, cities: list[str]) -> "Agent[None]":
    @function_tool
    def weather(city: str) -> str:
        """Returns the weather of a city."""
        cities.append(city)
        return f"{city}: 21° ✓"

    return Agent("meteorologist", instructions=METEOROLOGIST, model=model, tools=[weather])


def _with_model(
    server: Running, api: str, use_model: Callable[[Model], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        url = f"{server.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=TIMEOUT_SECONDS) as client:
            await use_model(APIS[api](MODEL, client))

    asyncio.run(run())


def _is_text(event: Any) -> bool:
    return bool(event.type == "response.output_text.delta")
