"""Slips of models: every kind for every family of its shape, at every split point."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from malformed_outputs import Slip, make_slips
from wire_shapes import REASONING_ONLY, WIRES

from dovetail_model import Event, Message, fold
from dovetail_parsers import Parser, families

SLIPS = make_slips()
BY_NAME = {family.name: family for family in families()}


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


def test_every_family_has_a_shape() -> None:
    assert {wire.family for wire in WIRES} | REASONING_ONLY == set(BY_NAME)
