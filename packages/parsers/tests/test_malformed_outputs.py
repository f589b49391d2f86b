"""Slips of models: every kind for every family of its shape, at every split point."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from malformed_outputs import SPECIAL_SHAPES, Slip, make_slips, render_table, special_pieces
from parser_cases import TOOLS
from wire_shapes import REASONING_ONLY, WIRES, Wire

from dovetail_model import Event, Message, fold
from dovetail_parsers import Parser, families

SLIPS = make_slips()
BY_NAME = {family.name: family for family in families()}
DOCS = Path(__file__).parents[3] / "docs" / "invariants.md"
#: Formats that end a call with a special token, and show text behind it.
SPECIAL = [
    wire for wire in WIRES if wire.shape in SPECIAL_SHAPES and wire.closer.startswith(("<|", "<｜"))
]


def run(slip: Slip, pieces: Iterable[str]) -> tuple[list[Event], Message]:
    family = BY_NAME[slip.family]
    parser = Parser(
        family.tool_parser, family.reasoning_parser, tools=slip.tools, in_reasoning=False
    )
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    return events, fold(events)


def shown(message: Message) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for block in message.blocks:
        if block.type != "tool_call":
            found.append((block.type, block.text))
        elif not block.complete:
            found.append(("cut", block.name))
        else:
            arguments = block.arguments if block.custom else json.loads(block.arguments)
            found.append(("call", block.name, arguments))
    return found


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.id)
def test_slip(slip: Slip) -> None:
    events, whole = run(slip, [slip.text])
    assert shown(whole) == list(slip.blocks)
    assert "".join(getattr(event, "raw", "") for event in events) == slip.text
    splits = [(slip.text[:at], slip.text[at:]) for at in range(1, len(slip.text))]
    for pieces in (slip.text, *splits):
        message = run(slip, pieces)[1]
        assert message.blocks == whole.blocks
        assert message.raw == slip.text


CLOSED_VALUES = [
    slip for slip in SLIPS if slip.kind == "closer_in_a_value" and slip.variant == "lines"
]


@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize("slip", CLOSED_VALUES, ids=lambda slip: slip.family)
def test_value_with_closers_is_never_truncated(slip: Slip, size: int) -> None:
    """Also if the value's own closer follows too late to wait for it, or never."""
    lines = "\nas shown." * 3_000
    text = slip.text.replace("\nas shown.", lines)
    whole = slip.blocks[0][2]["city"].replace("\nas shown.", lines)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    call = ("call", "get_weather", {"city": whole})
    assert shown(run(slip, pieces)[1]) == [call]
    pieces = [text[: -len(text) // 4][at : at + size] for at in range(0, len(text), size)]
    assert shown(run(slip, pieces)[1]) == [("cut", "get_weather")]


def test_every_family_has_a_shape() -> None:
    assert {wire.family for wire in WIRES} | REASONING_ONLY == set(BY_NAME)


def read_tokens(wire: Wire, text: str, size: int) -> Message:
    """Parse a text with its special tokens marked, and its plain text in pieces of a size."""
    family = BY_NAME[wire.family]
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=False)
    events: list[Event] = []
    for piece, special in special_pieces(text):
        step = len(piece) if special else size
        for at in range(0, len(piece), step):
            events += parser.feed(piece[at : at + step], special)
    message = fold(events + parser.finish())
    assert message.raw == text
    return message


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("wire", SPECIAL, ids=lambda wire: wire.family)
def test_special_token_in_an_open_string_ends_the_call(wire: Wire, size: int) -> None:
    text = wire.opener + wire.call.split('"}')[0].split('")')[0] + wire.closer
    after = "<|start|>assistant<|channel|>final<|message|>" if wire.family == "harmony" else ""
    message = read_tokens(wire, f"{text}{after}After.", size)
    assert shown(message) == [("cut", "get_weather"), ("text", "After.")]
    assert shown(read_tokens(wire, text, size)) == [("cut", "get_weather")]
    assert shown(read_tokens(wire, wire.text, size)) == [("call", "get_weather", {"city": "Paris"})]


@pytest.mark.parametrize("size", [1, 1000])
def test_special_token_that_a_string_quotes_is_data(size: int) -> None:
    wire = next(wire for wire in SPECIAL if wire.family == "kimi_k2")
    text = wire.text.replace("Paris", "a <|tool_call_end|> b")
    call = ("call", "get_weather", {"city": "a <|tool_call_end|> b"})
    assert shown(read_tokens(wire, text, size)) == [call]


def test_documentation_lists_the_slips() -> None:
    assert "\n".join(render_table()) in DOCS.read_text()
