"""Generated inputs of the property tests: messages, random markers, random chunks."""

import json
from typing import Any

from hypothesis import strategies as st

from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers.arguments.pythonic import Pythonic
from dovetail_parsers.family import Family
from dovetail_parsers.registry import load_grammar

WORDS = st.text(
    st.sampled_from("abc é漢🦜 \n\t.,:;!?*#-_/\\\"'`~()=+&%$@^0159"), min_size=1, max_size=24
)
#: Data that looks like markup. Inside a value it is data.
TRICKY = st.sampled_from(
    ["</think>", "<think>", "<tool_call>", "</tool_call>", "{", "}", "]", "\\n", "null", "12", ""]
)
STRINGS = st.one_of(WORDS, TRICKY, st.tuples(WORDS, TRICKY, WORDS).map("".join))
INTEGERS = st.integers(-(10**30), 10**30)
NUMBERS = st.one_of(
    INTEGERS, st.floats(allow_nan=False, allow_infinity=False), st.just(1e-7), st.just(0)
)


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict(fields))


ARGUMENTS = {
    "get_time": st.just({}),
    "write_file": _optional(path=STRINGS, content=STRINGS),
    "configure": _optional(
        text=STRINGS,
        count=INTEGERS,
        ratio=NUMBERS,
        flag=st.booleans(),
        options=_optional(depth=INTEGERS, name=STRINGS),
        tags=st.lists(STRINGS, max_size=3),
        pairs=st.lists(_optional(key=STRINGS, size=INTEGERS), max_size=2),
    ),
}


@st.composite
def calls(draw: st.DrawFn) -> ToolCallBlock:
    if draw(st.integers(0, 9)) == 0:
        return ToolCallBlock("", "apply_patch", draw(WORDS), custom=True)
    name = draw(st.sampled_from(sorted(ARGUMENTS)))
    value = draw(ARGUMENTS[name])
    return ToolCallBlock("", name, json.dumps(value, ensure_ascii=draw(st.booleans())))


def _prose() -> st.SearchStrategy[str]:
    """Text that no format could take for framing, a marker or a bare call."""
    return WORDS.map(str.strip).filter(bool).map(lambda text: f"So {text}.")


@st.composite
def messages(draw: st.DrawFn, family: Family) -> list[OutputBlock]:
    """Draw a turn that the family's format can express."""
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    kinds = ["tool_call"] if family.tools else []
    if "reasoning" in table.states:
        kinds.append("reasoning")
    if table.entry == "text" or family.unified is not None:
        kinds.append("text")
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)) if kinds else []
    blocks: list[OutputBlock] = []
    for kind in chosen:
        if blocks and blocks[-1].type == kind != "tool_call":
            continue
        if kind == "tool_call":
            blocks.append(draw(calls()))
        elif kind == "reasoning":
            blocks.append(ReasoningBlock(draw(_prose())))
        else:
            blocks.append(TextBlock(draw(_prose())))
    if draw(st.booleans()) and (not blocks or blocks[-1].type != "text"):
        blocks.append(TextBlock(draw(_prose())))
    return _expressible(blocks, family)


def _expressible(blocks: list[OutputBlock], family: Family) -> list[OutputBlock]:
    """Formats without an opening marker write calls once, as the full output."""
    if not _is_bare(family):
        return blocks
    seen_calls, expressible = False, list[OutputBlock]()
    for block in blocks:
        if block.type == "tool_call":
            if seen_calls and expressible[-1].type != "tool_call":
                break
            seen_calls = True
        elif seen_calls and block.type == "reasoning":
            break
        expressible.append(block)
    return expressible


def _is_bare(family: Family) -> bool:
    if family.tools is None:
        return False
    bodies = [mode.body for mode in family.tools.modes.values()]
    first = next((body for body in bodies if body is not None), None)
    return (isinstance(first, Pythonic) and first.bare) or family.name == "xlam"


def soup(family: Family) -> st.SearchStrategy[str]:
    """Draw the family's own markers, shuffled with parts of calls and prose."""
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    markers = sorted({marker for state in table.states.values() for marker in state.edges})
    pieces = [
        "get_time",
        "configure",
        "nobody",
        "functions.get_time:0",
        '{"name": "get_time", "arguments": {}}',
        '{"name": "configure", "arguments": {"text": "a',
        '{"count": 1}',
        '{"input": "x"}',
        '"arguments": {',
        "call:configure{count:1}",
        "get_time()",
        "configure(count=1,",
        "analysis",
        "to=functions.get_time",
        "text",
        "count",
        "12",
        "null",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        "word",
        "é🦜",
        family.sample,
    ]
    piece = st.one_of(st.sampled_from(markers or ["x"]), st.sampled_from(pieces))
    return st.lists(piece, max_size=24).map("".join)


def split_randomly(draw: st.DrawFn, text: str) -> list[str]:
    """Split the text into pieces of any size."""
    sizes = draw(st.lists(st.integers(1, 7), max_size=40)) or [1]
    pieces: list[str] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[at : at + size])
        at, turn = at + size, turn + 1
    return pieces
