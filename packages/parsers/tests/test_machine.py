"""Events per chunk: tables of pieces and the events that they complete."""

import re
from dataclasses import dataclass

import pytest
from parser_cases import TOOLS

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    ReasoningBlock,
    ReasoningDelta,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolSpec,
    fold,
)
from dovetail_parsers import Parser, families, parse, write_message

TYPED = {"type": "object", "properties": {"n": {"type": "integer"}}}


@dataclass(frozen=True)
class Flow:
    id: str
    tool: str | None
    reasoning: str | None
    steps: list[tuple[str, list[str]]]
    end: list[str]


def summaries(events: list[Event]) -> list[str]:
    """Return one line per event, without raw text."""
    return [line for line in map(_line, events) if line]


def _line(event: Event) -> str:
    match event:
        case TextDelta(text=text):
            return f"text {text}"
        case ReasoningDelta(text=text):
            return f"thought {text}"
        case SpanEnd(kind="frame"):
            return ""
        case SpanEnd(kind=kind):
            return f"end {kind}"
        case CallOpen(index=index, name=name):
            return f"open {index} {name}"
        case CallArgs(text=text):
            return f"args {text}"
        case CallClose(index=index):
            return f"close {index}"
        case Diagnostic(code=code):
            return f"note {code}"
    raise TypeError(type(event))


FLOWS = [
    Flow(
        "text_is_emitted_at_once",
        "hermes",
        "qwen3",
        [("Hello", ["text Hello"]), (" there", ["text  there"]), (" <b>", ["text  <b>"])],
        ["end text"],
    ),
    Flow(
        "white_space_is_held_until_the_next_text",
        "hermes",
        "qwen3",
        [("Hello \n", ["text Hello"]), ("\n", []), ("world", ["text  \n\nworld"])],
        ["end text"],
    ),
    Flow(
        "partial_marker_is_held_back",
        "hermes",
        "qwen3",
        [("a <tool", ["text a"]), ("_c", []), ("at", ["text  <tool_cat"])],
        ["end text"],
    ),
    Flow(
        "json_arguments_stream_as_they_arrive",
        "hermes",
        None,
        [
            ("<tool_call>", []),
            ('{"name": "write_file", ', []),
            ('"arguments": ', []),
            ('{"con', ["open 0 write_file", 'args {"con']),
            ('tent": "a', ['args tent": "a']),
            ('b"', ['args b"']),
            ("}", ["args }"]),
            ("}", ["close 0"]),
            ("</tool_call>", []),
        ],
        [],
    ),
    Flow(
        "a_string_streams_inside_its_value",
        "qwen3_coder",
        None,
        [
            ("<tool_call>\n<function=write_file>\n", []),
            ("<parameter=", ["open 0 write_file"]),
            ("content>\n", ['args {"content": ']),
            ("def f", ['args "def f']),
            ('():\n    return "x', ['args ():\\n    return \\"x']),
            ('"\n', ['args \\"']),
            ("</param", []),
            ("eter>\n", []),
            ("</function>", ['args "', "args }", "close 0"]),
        ],
        [],
    ),
    Flow(
        "reasoning_ends_where_a_call_may_start",
        "qwen3_coder",
        "qwen3",
        [
            ("<think>", []),
            ("hm", ["thought hm"]),
            ("</think>", []),
            ("\n\n", []),
            ("<tool_call>", ["end reasoning"]),
            ("\n<function=write_file>\n", []),
            ("<parameter=", ["open 0 write_file"]),
        ],
        ["note cut_call"],
    ),
    Flow(
        "a_closer_after_an_incomplete_call_is_markup",
        "mistral",
        "mistral",
        [
            ("[TOOL_CALLS]get_time[ARGS]", ["open 0 get_time"]),
            ("[TOOL_CALLS]", ["note unexpected_marker", "args {}", "close 0"]),
            ("[", []),
            ("/THINK]", ["note stray_marker"]),
        ],
        [],
    ),
    Flow(
        "a_number_waits_for_its_end",
        "glm47",
        None,
        [
            ("<tool_call>get_weather<arg_key>", ["open 0 get_weather"]),
            ("days</arg_key><arg_value>", ['args {"days": ']),
            ("1", []),
            ("2", []),
            ("</arg_value>", []),
            ("</tool_call>", ["args 12", "args }", "close 0"]),
        ],
        [],
    ),
    Flow(
        "the_end_of_reasoning_is_emitted_when_something_else_starts",
        "hermes",
        "qwen3",
        [
            ("<think>", []),
            ("Hm.", ["thought Hm."]),
            ("\n</think>", []),
            ("\n\n", []),
            ("Hi", ["end reasoning", "text Hi"]),
        ],
        ["end text"],
    ),
    Flow(
        "a_confirmed_call_inside_reasoning_ends_it",
        "glm47",
        "glm45",
        [
            ("<think>Maybe", ["thought Maybe"]),
            ("<tool_call>get_time", []),
            (
                "</tool_call>",
                [
                    "note call_inside_reasoning",
                    "end reasoning",
                    "open 0 get_time",
                    "args {}",
                    "close 0",
                ],
            ),
        ],
        [],
    ),
    Flow(
        "two_calls_of_a_list_close_one_by_one",
        "mistral",
        None,
        [
            (
                '[TOOL_CALLS][{"name": "get_time", "arguments": {}}',
                ["open 0 get_time", "args {}", "close 0"],
            ),
            (', {"name": "get_time"', []),
            (', "arguments": {}}', ["open 1 get_time", "args {}", "close 1"]),
            ("]", []),
        ],
        [],
    ),
    Flow(
        "harmony_closes_before_its_closing_token",
        "harmony",
        "gpt_oss",
        [
            ("<|channel|>commentary to=functions.get_time", []),
            (" <|constrain|>json<|message|>", ["open 0 get_time"]),
            ("{}", ["args {}", "close 0"]),
            ("<|call|>", []),
        ],
        [],
    ),
]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.id)
def test_flow(flow: Flow) -> None:
    parser = Parser(flow.tool, flow.reasoning, tools=TOOLS, in_reasoning=False)
    for piece, expected in flow.steps:
        assert summaries(parser.feed(piece)) == expected, piece
    assert summaries(parser.finish()) == flow.end


SPECIAL = {
    name: next(family.sample for family in families() if family.name == name)
    for name in ("kimi_k2", "mistral", "deepseek_v3_1", "gemma4", "harmony", "kimi_k3", "inkling")
}


@pytest.mark.parametrize("family", SPECIAL)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_special_token_spelled_out_in_plain_text_is_prose(family: str, size: int) -> None:
    text = SPECIAL[family]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    parser = Parser(family, None, tools=TOOLS, in_reasoning=False)
    events = [event for piece in pieces for event in parser.feed(piece, special=False)]
    events += parser.finish()
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
    assert not [event for event in events if isinstance(event, CallOpen)]


def test_special_tokens_among_plain_text() -> None:
    parser = Parser("kimi_k2", None, tools=TOOLS)
    events = parser.feed("Use `<|tool_call_begin|>`: ", special=False)
    for piece, special in [
        ("<|tool_calls_section_begin|>", True),
        ("<|tool_call_begin|>", True),
        ("functions.get_time:7", False),
        ("<|tool_call_argument_begin|>", True),
        ('{"a": "<|tool_call_end|>"}', False),
        ("<|tool_call_end|>", True),
        ("<|tool_calls_section_end|>", True),
    ]:
        events += parser.feed(piece, special)
    assert summaries(events + parser.finish()) == [
        "text Use `<|tool_call_begin|>`:",
        "end text",
        "open 0 get_time",
        'args {"a": "<|tool_call_end|>"}',
        "close 0",
    ]


def test_empty_input_yields_no_events() -> None:
    parser = Parser("hermes", "qwen3")
    assert parser.feed("") == []
    assert parser.finish() == []


def test_namespaces_are_restored_and_tools_keep_their_own_names() -> None:
    tools = [
        ToolSpec("search", namespace="mcp", shown_as="mcp__search", parameters=TYPED),
        ToolSpec("patch", custom=True, namespace="edit", shown_as="edit__patch"),
    ]
    message = parse(
        "<tool_call><function=mcp__search><parameter=n>3</parameter></function></tool_call>"
        "<tool_call><function=edit__patch><parameter=input>\n*** 5\n</parameter></function>"
        "</tool_call>",
        tool_parser="qwen3_coder",
        tools=tools,
    )
    calls = [block for block in message.blocks if block.type == "tool_call"]
    assert [(b.namespace, b.name, b.arguments, b.custom) for b in calls] == [
        ("mcp", "search", '{"n": 3}', False),
        ("edit", "patch", "*** 5", True),
    ]


COMPOSITE = ["kimi_k3", "gemma4", "minimax_m3", "harmony", "kimi_k2", "mistral", "qwen3_coder"]


@pytest.mark.parametrize("name", COMPOSITE)
def test_flagged_pieces_yield_the_same_events_as_the_full_text(name: str) -> None:
    """As from a detokenizer: special tokens complete, plain text per character."""
    family = next(family for family in families() if family.name == name)
    text = write_message(
        [
            ReasoningBlock("Hm."),
            ToolCallBlock("", "get_weather", '{"city": "Paris"}'),
            TextBlock("Done."),
        ],
        family,
    )
    token = re.compile(r"<\|[^<>| ]+\|?>|<[a-z_]+\|>|<\|\"\|>|\]<\]minimax\[>\[|\[[A-Z_/]+\]")
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=False)
    events: list[Event] = []
    at = 0
    while at < len(text):
        found = token.match(text, at)
        piece = found.group() if found else text[at]
        events += parser.feed(piece, special=found is not None)
        at += len(piece)
    message = fold(events + parser.finish())
    assert [block.type for block in message.blocks] == ["reasoning", "tool_call", "text"]


def test_spelled_out_token_in_a_reverted_head_stays_prose() -> None:
    parser = Parser("mistral", None)
    events = parser.feed("[TOOL_CALLS]", special=True)
    events += parser.feed('[{"x": "[TOOL_CALLS]get_time[ARGS]{}"', special=False)
    assert not [e for e in events + parser.finish() if isinstance(e, CallOpen)]
