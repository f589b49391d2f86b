"""OpenAI's agents library over both of its APIs: function tools, a handoff, a streamed run."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
from exactness import Row, was_exact
from openai import AsyncOpenAI
from server_process import TIMEOUT_SECONDS, Running
from stage import MODEL, QWEN3_CODER, Stage, call, say, stage, think, turns

from dovetail_model import OutputBlock

Tell = Callable[[Sequence[Row]], None]
#: Traces would go to the library's own server.
QUIET = RunConfig(tracing_disabled=True)
DONE = "In Köln, es sind 21° ✓"
CLERK = "You hand questions on to the meteorologist."
METEOROLOGIST = "You know the weather everywhere."
APIS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}

SAID: list[list[OutputBlock]] = [
    [
        think("Two cities: Oslo first."),
        call("weather", city="Oslo"),
        think("Now Köln, größer."),
        call("weather", city="Köln"),
    ],
    [think("One more, to be sure."), say("A moment."), call("weather", city="Zürich")],
    [think("Known now."), say(DONE)],
]
HANDED_ON: list[list[OutputBlock]] = [[think("Not mine."), call("transfer_to_meteorologist")]]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return stage(tmp_path_factory.mktemp("stage"), QWEN3_CODER)


@pytest.fixture(scope="module")
def server(where: Stage) -> Iterator[Running]:
    clerk = {"when": {"text": CLERK}, "turns": turns(QWEN3_CODER, *HANDED_ON)}
    script = {"rules": [clerk], "turns": turns(QWEN3_CODER, *SAID), "end": "fail"}
    with where.server(script) as running:
        yield running


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> str:
    """A question that no other test asks, which is how its requests are known."""
    return f"Where is it warmer, in Oslo or in Köln? ({request.node.name})"


def test_an_agent_runs_its_tools(
    api: str, asked: str, server: Running, where: Stage, tell: Tell
) -> None:
    cities: list[str] = []

    async def ask(model: Model) -> None:
        result = await Runner.run(_meteorologist(model, cities), asked, run_config=QUIET)
        assert result.final_output == DONE

    _with_model(server, api, ask)
    assert cities == ["Oslo", "Köln", "Zürich"]
    heard = [one for one in where.heard if asked in one.text]
    assert len(heard) == 3
    tell(was_exact(heard, new=1))


def test_a_streamed_run_tells_its_items_in_order(
    api: str, asked: str, server: Running, where: Stage, tell: Tell
) -> None:
    cities: list[str] = []
    told: list[str] = []
    text: list[str] = []

    async def ask(model: Model) -> None:
        run = Runner.run_streamed(_meteorologist(model, cities), asked, run_config=QUIET)
        async for event in run.stream_events():
            if event.type == "run_item_stream_event":
                told.append(event.name)
            elif event.type == "raw_response_event":
                text.append(getattr(event.data, "delta", "") if _is_text(event.data) else "")
        assert run.final_output == DONE

    _with_model(server, api, ask)
    assert cities == ["Oslo", "Köln", "Zürich"]
    assert "".join(text) == f"A moment.{DONE}"
    assert (told.count("tool_called"), told.count("tool_output")) == (3, 3)
    assert told[-1] == "message_output_created"
    heard = [one for one in where.heard if asked in one.text]
    assert len(heard) == 3
    tell(was_exact(heard, new=1))


def test_one_agent_hands_on_to_another(
    api: str, asked: str, server: Running, where: Stage, tell: Tell
) -> None:
    """The second one's prompt has another head: it begins anew, with the first one's turn in it."""
    cities: list[str] = []

    async def ask(model: Model) -> None:
        second = _meteorologist(model, cities)
        first: Agent[None] = Agent("clerk", instructions=CLERK, model=model, handoffs=[second])
        result = await Runner.run(first, asked, run_config=QUIET)
        assert (result.final_output, result.last_agent.name) == (DONE, "meteorologist")

    _with_model(server, api, ask)
    assert cities == ["Oslo", "Köln", "Zürich"]
    heard = [one for one in where.heard if asked in one.text]
    assert [one.text.count(CLERK) for one in heard] == [1, 0, 0, 0]
    assert heard[0].output_text.removesuffix("<|im_end|>") in heard[1].text
    tell(was_exact(heard, new=2))


def _meteorologist(model: Model, cities: list[str]) -> "Agent[None]":
    @function_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        return f"{city}: 21° ✓"

    return Agent("meteorologist", instructions=METEOROLOGIST, model=model, tools=[weather])


def _with_model(
    server: Running, api: str, ask: Callable[[Model], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        url = f"{server.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=TIMEOUT_SECONDS) as client:
            await ask(APIS[api](MODEL, client))

    asyncio.run(run())


def _is_text(event: Any) -> bool:
    return bool(event.type == "response.output_text.delta")
