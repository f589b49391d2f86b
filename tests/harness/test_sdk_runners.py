"""The tool runners of the official SDKs in complete loops: their tools run, their turns are exact.

They are libraries, so the tools are functions of this file.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from anthropic import beta_tool
from openai import pydantic_function_tool
from openai.lib.responses_tool_runner import EarlyExecution, RegisteredFunction, ResponsesToolRunner
from openai.types.chat import ChatCompletionMessageParam
from prefix_exactness import ReportRun, assert_exact
from pydantic import BaseModel
from server_process import Running
from server_setup import KIMI, MODEL, ServerSetup, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

ToolCalls = list[tuple[str, str]]
DONE = "In Köln: 21° ✓"
CALLS = [("weather", "Oslo"), ("weather", "Köln"), ("note", "Köln, 21°"), ("weather", "Zürich")]
OUTPUTS: list[list[OutputBlock]] = [
    [
        think("Two cities: Oslo first."),
        call("weather", city="Oslo"),
        think("Now Köln, größer."),
        call("weather", city="Köln"),
    ],
    [
        think("I write it down."),
        text("I note it."),
        call("note", text="Köln, 21°"),
        call("weather", city="Zürich"),
    ],
    [think("Known now."), text(DONE)],
]


class weather(BaseModel):
    """Returns the weather."""

    city: str


class note(BaseModel):
    """Writes something down."""

    text: str


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> ServerSetup:
    return server_setup(tmp_path_factory.mktemp("server"), KIMI)


@pytest.fixture(scope="module")
def server(setup: ServerSetup) -> Iterator[Running]:
    """One server for all tests: the question identifies the test."""
    with setup.server({"turns": turns(KIMI, *OUTPUTS), "end": "fail"}) as running:
        yield running


@pytest.fixture
def question(request: pytest.FixtureRequest) -> str:
    """A question that only one test sends."""
    return f"Where is it warmer, in Oslo or in Köln? ({request.node.name})"


@pytest.fixture
def tool_calls() -> ToolCalls:
    """The calls of the tools, in the order in which they ran."""
    return []


@pytest.fixture
def check_run(
    setup: ServerSetup, question: str, tool_calls: ToolCalls, report_run: ReportRun
) -> Callable[[], None]:
    """Return a final check: the tools ran, and each request continued the previous one."""

    def check() -> None:
        assert tool_calls == CALLS
        generations = [one for one in setup.generations if question in one.text]
        assert len(generations) == len(OUTPUTS)
        report_run(assert_exact(generations, new=1))

    return check


@pytest.mark.parametrize(
    "how",
    [{}, {"stream": True}, {"stream": True, "run_tools_eagerly": True}],
    ids=["whole", "stream", "eager"],
)
def test_anthropic_tool_runner(
    how: dict[str, Any],
    server: Running,
    question: str,
    tool_calls: ToolCalls,
    check_run: Callable[[], None],
) -> None:
    runner = server.anthropic().beta.messages.tool_runner(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": question}],
        tools=_anthropic_tools(tool_calls),
        **how,
    )
    last = runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == [DONE]
    assert last.stop_reason == "end_turn"
    check_run()


def test_anthropic_tools_run_while_their_turn_is_still_streaming(
    server: Running, question: str, tool_calls: ToolCalls
) -> None:
    """The first call's tool has run when the second one's block starts."""
    runner = server.anthropic().beta.messages.tool_runner(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": question}],
        tools=_anthropic_tools(tool_calls),
        stream=True,
        run_tools_eagerly=True,
    )
    seen = [
        (event.content_block.type, len(tool_calls))
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
    how: dict[str, Any],
    server: Running,
    question: str,
    tool_calls: ToolCalls,
    check_run: Callable[[], None],
) -> None:
    early = EarlyExecution(functions=["weather", "note"]) if how.get("eager") else None
    runner = ResponsesToolRunner(functions=_openai_functions(tool_calls), early_execution=early)
    last = runner.run(
        server.openai(), {"model": MODEL, "input": question, "store": False}, max_steps=5, **how
    )
    assert last.output_text == DONE
    check_run()


def test_openai_responses_keeps_order_in_a_turn(
    server: Running, question: str, tool_calls: ToolCalls
) -> None:
    runner = ResponsesToolRunner(functions=_openai_functions(tool_calls))
    parameters: Any = {"model": MODEL, "input": question, "store": False}
    first = next(runner.iterate(server.openai(), parameters, max_steps=5, stream=True))
    kinds = [item.type for item in first.response.output]
    assert kinds == ["reasoning", "function_call", "reasoning", "function_call"]


def test_openai_chat_stream_parses_tools(
    server: Running, question: str, tool_calls: ToolCalls, check_run: Callable[[], None]
) -> None:
    """The SDK has no runner for chat, but parses arguments as they arrive."""
    tools = [pydantic_function_tool(weather), pydantic_function_tool(note)]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for _ in OUTPUTS:
        with server.openai().chat.completions.stream(
            model=MODEL, messages=messages, tools=tools, parallel_tool_calls=True
        ) as stream:
            snapshots = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
            choice = stream.get_final_completion().choices[0]
        for before, after in pairwise(snapshots):
            if before.index == after.index:
                assert after.arguments == before.arguments + after.arguments_delta
        message: Any = choice.message.to_dict()
        messages.append(message)
        for made in choice.message.tool_calls or ():
            parsed: Any = made.function.parsed_arguments
            assert isinstance(parsed, weather | note)
            result = _ran(tool_calls, type(parsed).__name__, *parsed.model_dump().values())
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    assert (choice.message.content, choice.finish_reason) == (DONE, "stop")
    check_run()


def _anthropic_tools(tool_calls: ToolCalls) -> list[Any]:
    @beta_tool
    def weather(city: str) -> str:
        """Returns the weather of a city."""
        return _ran(tool_calls, "weather", city)

    @beta_tool
    def note(text: str) -> str:
        """Writes something down."""
        return _ran(tool_calls, "note", text)

    return [weather, note]


def _openai_functions(tool_calls: ToolCalls) -> list[RegisteredFunction]:
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
            partial(_run_function, tool_calls, name, key),
        )
        for name, key in (("weather", "city"), ("note", "text"))
    ]


def _run_function(tool_calls: ToolCalls, name: str, key: str, given: dict[str, object]) -> str:
    return _ran(tool_calls, name, str(given[key]))


def _ran(tool_calls: ToolCalls, name: str, text: str) -> str:
    tool_calls.append((name, text))
    return f"{name}: {text} ✓"
