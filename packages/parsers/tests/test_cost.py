"""Work per chunk is bounded by the chunk. It is measured in function calls, not in time."""

import json
import sys
from collections.abc import Callable

import pytest
from parser_cases import TOOLS

from dovetail_model import ToolCallBlock
from dovetail_parsers import Parser, families, write_message
from dovetail_parsers.family import Family
from dovetail_parsers.registry import load_grammar
from dovetail_parsers.transitions import MachineState

LINE = "def f(x):\n    return \"é\" if x < 3 else {'a': [1, 2]}  # <b> </x>\n"
TOOL_FAMILIES = [family for family in families() if family.tools]


def count_calls(run: Callable[[], None]) -> int:
    """Count the calls of Python and C functions."""
    count = 0

    def hook(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hook)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def calls_per_chunk(family: Family, text: str) -> float:
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=False)

    def run() -> None:
        for piece in pieces:
            parser.feed(piece)
        parser.finish()

    return count_calls(run) / len(pieces)


@pytest.mark.parametrize("family", TOOL_FAMILIES, ids=lambda family: family.name)
def test_cost_per_chunk_does_not_grow_with_the_argument(family: Family) -> None:
    def text(size: int) -> str:
        content = (LINE * (size // len(LINE) + 1))[:size]
        arguments = json.dumps({"path": "a", "content": content}, ensure_ascii=False)
        return write_message([ToolCallBlock("", "write_file", arguments)], family)

    assert calls_per_chunk(family, text(40_000)) < 1.1 * calls_per_chunk(family, text(4_000))


#: Outputs that the parser must hold for long, or read twice.
HOSTILE = {
    "white_space": " \n" * 4,
    "openers": "<tool_call>",
    "half_openers": "<tool_cal",
    "closers_in_a_value": "</parameter> x",
    "orphans": "</tool_call></think>",
    "braces": '{"name": [',
    "enclosing_closers": "</function> x",
    "quoted_closers": "</function></tool_call>'",
    "far_closers": "</function>" + " " * 60,
    "nested_openers": "<function=",
    "line_breaks": "\nx\n",
}


@pytest.mark.parametrize(
    "start", ["", "<tool_call>\n<function=configure>\n<parameter=options>\n{!"]
)
@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_cost_of_hostile_output_is_linear(start: str, piece: str) -> None:
    family = next(family for family in families() if family.name == "qwen3_coder")
    short, long = start + piece * 200, start + piece * 2_000
    assert calls_per_chunk(family, long) < 1.3 * calls_per_chunk(family, short)


@pytest.mark.parametrize("family", TOOL_FAMILIES, ids=lambda family: family.name)
def test_cost_of_repeated_markers_is_linear(family: Family) -> None:
    """Repeated markers that start heads: each is reverted after a bounded look-ahead."""
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    for marker in table.states["text"].edges:
        short, long = marker * 60, marker * 600
        for size in (4, len(long)):
            assert cost(family, long, size) < 15 * cost(family, short, size) + 10_000


#: Calls without their opening wrapper that never become calls.
UNWRAPPED = {
    "gemma4": '\ncall:write_file{path:<|"|>a',
    "glm47": "\nwrite_file<arg_key>path</arg_key><arg_value>a",
    "hermes": '\n{"name": "write_file", "arguments": {"path": "a"}} x',
    "mistral": '\nwrite_file[ARGS]{"path": "a"} x',
    "kimi_k2": "\nfunctions.write_file:0 x",
    "olmo3": "\nwrite_file(path='a') x",
}


@pytest.mark.parametrize("name", UNWRAPPED)
def test_cost_of_calls_without_wrapper_is_linear(name: str) -> None:
    family = next(family for family in families() if family.name == name)
    short, long = UNWRAPPED[name] * 100, UNWRAPPED[name] * 1_000
    for size in (4, len(long)):
        assert cost(family, long, size) < 15 * cost(family, short, size) + 10_000


def cost(family: Family, text: str, size: int) -> int:
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=False)

    def run() -> None:
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        parser.finish()

    return count_calls(run)


def test_long_call_is_not_retained_in_memory() -> None:
    """The parser retains nothing of the text that it has passed on."""
    parser = Parser("qwen3_coder", "qwen3", tools=TOOLS)
    parser.feed("<tool_call>\n<function=write_file>\n<parameter=content>\n")
    parser.feed("x" * 1_000_000)
    machine = parser._stream
    sizes = [len(v) for k in MachineState.__slots__ if isinstance(v := getattr(machine, k), str)]
    assert max(sizes) < 100
