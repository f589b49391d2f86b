"""The official SDKs' own tool runners, in whole loops: their tools run, their turns are exact.

Unlike the agents they are libraries, so the tools are functions of this file.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from anthropic import beta_tool
from exactness import Row, was_exact
from openai import pydantic_function_tool
from openai.lib.responses_tool_runner import EarlyExecution, RegisteredFunction, ResponsesToolRunner
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel
from server_process import Running
from stage import KIMI, MODEL, Stage, call, say, stage, think, turns

from dovetail_model import OutputBlock

Tell = Callable[[Sequence[Row]], None]
Did = list[tuple[str, str]]
DONE = "In Köln: 21° ✓"
CALLS = [("weather", "Oslo"), ("weather", "Köln"), ("note", "Köln, 21°"), ("weather", "Zürich")]
SAID: list[list[OutputBlock]] = [
    [
        think("Two cities: Oslo first."),
        call("weather", city="Oslo"),
        think("Now Köln, größer."),
        call("weather", city="Köln"),
    ],
    [
        think("I write it down."),
        say("I note it."),
        call("note", text="Köln, 21°"),
        call("weather", city="Zürich"),
    ],
    [think("Known now."), say(DONE)],
]


class weather(BaseModel):
    """Tells the weather."""

    city: str


class note(BaseModel):
    """Writes something down."""

    text: str


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return stage(tmp_path_factory.mktemp("stage"), KIMI)


@pytest.fixture(scope="module")
def server(where: Stage) -> Iterator[Running]:
    """One for all: what is asked says whose it is."""
    with where.server({"turns": turns(KIMI, *SAID), "end": "fail"}) as running:
        yield running


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> str:
    """A question that no other test asks."""
    return f"Where is it warmer, in Oslo or in Köln? ({request.node.name})"


@pytest.fixture
def did() -> Did:
    """What the tools were asked for, in the order in which they ran."""
    return []


@pytest.fixture
def went_on(where: Stage, asked: str, did: Did, tell: Tell) -> Callable[[], None]:
    """To be called when all is said: the tools ran, and each request went on from the last."""

    def check() -> None:
        assert did == CALLS
        heard = [one for one in where.heard if asked in one.text]
        assert len(heard) == len(SAID)
        tell(was_exact(heard, new=1))

    return check


@pytest.mark.parametrize(
    "how",
    [{}, {"stream": True}, {"stream": True, "run_tools_eagerly": True}],
    ids=["whole", "stream", "eager"],
)
def test_anthropic_tool_runner(
    how: dict[str, Any], server: Running, asked: str, did: Did, went_on: Callable[[], None]
) -> None:
    runner = server.anthropic().beta.messages.tool_runner(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": asked}],
        tools=_anthropic_tools(did),
        **how,
    )
    last = runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == [DONE]
    assert last.stop_reason == "end_turn"
    went_on()


def test_anthropic_tools_run_while_their_turn_is_still_streaming(
    server: Running, asked: str, did: Did
) -> None:
    """The first call's tool has run when the second one's block begins."""
    runner = server.anthropic().beta.messages.tool_runner(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": asked}],
        tools=_anthropic_tools(did),
        stream=True,
        run_tools_eagerly=True,
    )
    seen = [
        (event.content_block.type, len(did))
        for event in next(iter(runner))
        if event.type == "content_block_start"
    ]
    assert [kind for kind, _ in seen] == ["thinking", "tool_use", "thinking", "tool_use"]
    assert [done for _, done in seen][:2] == [0, 0]
    assert seen[3][1] == 1


@pytest.mark.parametrize(
    "how", [{}, {"stream": True}, {"stream": True, "eager": True}], ids=["whole", "stream", "eager"]
)
def test_openai_responses_tool_runner(
    how: dict[str, Any], server: Running, asked: str, did: Did, went_on: Callable[[], None]
) -> None:
    early = EarlyExecution(functions=["weather", "note"]) if how.get("eager") else None
    runner = ResponsesToolRunner(functions=_openai_functions(did), early_execution=early)
    last = runner.run(
        server.openai(), {"model": MODEL, "input": asked, "store": False}, max_steps=5, **how
    )
    assert last.output_text == DONE
    went_on()


def test_openai_responses_keeps_order_in_a_turn(server: Running, asked: str, did: Did) -> None:
    runner = ResponsesToolRunner(functions=_openai_functions(did))
    parameters: Any = {"model": MODEL, "input": asked, "store": False}
    first = next(runner.iterate(server.openai(), parameters, max_steps=5, stream=True))
    kinds = [item.type for item in first.response.output]
    assert kinds == ["reasoning", "function_call", "reasoning", "function_call"]


def test_openai_chat_stream_parses_tools(
    server: Running, asked: str, did: Did, went_on: Callable[[], None]
) -> None:
    """The SDK has no runner for chat, but parses arguments as they come."""
    tools = [pydantic_function_tool(weather), pydantic_function_tool(note)]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": asked}]
    for _ in SAID:
        with server.openai().chat.completions.stream(
            model=MODEL, messages=messages, tools=tools, parallel_tool_calls=True
        ) as stream:
            snapshots = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
            choice = stream.get_final_completion().choices[0]
        for before, after in pairwise(snapshots):
            if before.index == after.index:
                assert after.arguments == before.arguments + after.arguments_delta
        told: Any = choice.message.to_dict()
        messages.append(told)
        for made in choice.message.tool_calls or ():
            parsed: Any = made.function.parsed_arguments
            assert isinstance(parsed, weather | note)
            result = _ran(did, type(parsed).__name__, *parsed.model_dump().values())
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    assert (choice.message.content, choice.finish_reason) == (DONE, "stop")
    went_on()


def _anthropic_tools(did: Did) -> list[Any]:
    @beta_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        return _ran(did, "weather", city)

    @beta_tool
    def note(text: str) -> str:
        """Writes something down."""
        return _ran(did, "note", text)

    return [weather, note]


def _openai_functions(did: Did) -> list[RegisteredFunction]:
    return [
        RegisteredFunction(
            {
                "type": "function",
                "name": name,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string"}},
                    "required": [key],
                    "additionalProperties": False,
                },
            },
            partial(_run_function, did, name, key),
        )
        for name, key in (("weather", "city"), ("note", "text"))
    ]


def _run_function(did: Did, name: str, key: str, given: dict[str, object]) -> str:
    return _ran(did, name, str(given[key]))


def _ran(did: Did, name: str, text: str) -> str:
    did.append((name, text))
    return f"{name}: {text} ✓"
