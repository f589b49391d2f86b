"""Properties that hold for every family, any model output and any chunking."""

import json
from typing import Any

import pytest
from generated_outputs import messages, soup, split_randomly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parser_cases import TOOLS

from dovetail_model import CallArgs, CallClose, CallOpen, Event, Message, OutputBlock, fold
from dovetail_parsers import Parser, families, parse, write_message
from dovetail_parsers.family import Family
from dovetail_parsers.registry import load_grammar

BY_NAME = {family.name: family for family in families()}
EACH = pytest.mark.parametrize("name", BY_NAME)
SETTINGS = settings(
    max_examples=30,  # `make fuzz` runs more
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def stream(family: Family, pieces: list[str], inside: bool | None = False) -> list[list[Event]]:
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=inside)
    return [parser.feed(piece) for piece in pieces] + [parser.finish()]


def flat(steps: list[list[Event]]) -> list[Event]:
    return [event for step in steps for event in step]


def exact(value: str) -> Any:
    """Load JSON with numbers in their original spelling."""
    return json.loads(value, parse_int=lambda n: ("n", n), parse_float=lambda n: ("n", n))


def shown(blocks: tuple[OutputBlock, ...] | list[OutputBlock]) -> list[object]:
    return [
        (b.name, b.arguments if b.custom else exact(b.arguments), b.custom)
        if b.type == "tool_call"
        else (b.type, b.text)
        for b in blocks
    ]


@EACH
@SETTINGS
@given(data=st.data())
def test_any_chunking_yields_the_same_message(name: str, data: st.DataObject) -> None:
    family = BY_NAME[name]
    text = data.draw(soup(family))
    inside = data.draw(st.sampled_from([None, True, False]))
    pieces = data.draw(st.composite(lambda draw: split_randomly(draw, text))())
    whole = fold(flat(stream(family, [text], inside)))
    assert fold(flat(stream(family, pieces, inside))).blocks == whole.blocks
    assert fold(flat(stream(family, list(text), inside))).blocks == whole.blocks
    assert whole.raw == text


@EACH
@SETTINGS
@given(data=st.data())
def test_random_markers_never_raise_or_leak_a_closer(name: str, data: st.DataObject) -> None:
    """The closer of a call is shown only in a code fence or behind an opener that is shown too."""
    family = BY_NAME[name]
    text = data.draw(soup(family))
    events = flat(stream(family, [text], data.draw(st.sampled_from([None, True, False]))))
    message = fold(events)
    assert "".join(getattr(event, "raw", "") for event in events) == text
    closers = family.tools.orphans if family.tools else ()
    for block in message.blocks:
        if block.type == "tool_call":
            if block.complete and not block.custom:
                assert isinstance(json.loads(block.arguments), dict)
        else:
            assert block.text.strip()
            assert not [closer for closer in _reasoning_closers(family) if closer in block.text]
            shown = [block.text.index(closer) for closer in closers if closer in block.text]
            before = block.text[: min(shown, default=0)]
            assert not shown or any(opener in before for opener in ("```", *_openers(family)))


def _openers(family: Family) -> list[str]:
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    names = {"text", table.entry}
    return [m for name in names for m, e in table.states[name].edges.items() if e.mode != "text"]


def _reasoning_closers(family: Family) -> tuple[str, ...]:
    form = load_grammar(family.tool_parser, family.reasoning_parser).reasoning
    if form is None:
        return ()
    return form.closers if form.orphans is None else form.orphans


@EACH
@SETTINGS
@given(data=st.data())
def test_written_message_parses_to_itself(name: str, data: st.DataObject) -> None:
    family = BY_NAME[name]
    blocks = data.draw(messages(family))
    text = write_message(blocks, family)
    message = _parse(family, text)
    assert shown(message.blocks) == shown(blocks)
    assert all(b.type != "tool_call" or b.complete for b in message.blocks)


def _parse(family: Family, text: str) -> Message:
    return parse(
        text,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        tools=TOOLS,
        in_reasoning=False,
    )


@EACH
@SETTINGS
@given(data=st.data())
def test_every_prefix_is_consistent(name: str, data: st.DataObject) -> None:
    """A prefix folds; an opened call stays; its arguments only grow."""
    family = BY_NAME[name]
    text = write_message(data.draw(messages(family)), family)
    end = data.draw(st.integers(0, len(text)))
    steps = stream(family, list(text))
    before = fold(flat(steps[:end]))
    after = fold(flat(steps))
    assert "".join(getattr(e, "raw", "") for e in flat(stream(family, [text[:end]]))) == text[:end]
    for early, late in zip(before.blocks, after.blocks, strict=False):
        assert early.type == late.type
        if early.type == "tool_call" and late.type == "tool_call":
            assert early.name == late.name
            assert late.arguments.startswith(early.arguments)
    assert len(before.blocks) <= len(after.blocks)


@EACH
@SETTINGS
@given(data=st.data())
def test_order_of_events(name: str, data: st.DataObject) -> None:
    """Calls open once, in order, one at a time; arguments come between open and close."""
    family = BY_NAME[name]
    opened, closed = -1, -1
    for event in flat(stream(family, list(data.draw(soup(family))))):
        match event:
            case CallOpen(index=index):
                assert index == opened + 1
                opened = index
            case CallArgs(index=index, text=text):
                assert index == opened > closed
                assert text
            case CallClose(index=index):
                assert index == opened > closed
                closed = index


@EACH
@SETTINGS
@given(data=st.data())
def test_call_closes_at_the_completing_character(name: str, data: st.DataObject) -> None:
    """A call closes with the character that completes it, so dispatch is neither early nor late."""
    family = BY_NAME[name]
    text = write_message(data.draw(messages(family)), family)
    steps = stream(family, list(text))
    for at, step in enumerate(steps[:-1]):
        for event in step:
            if isinstance(event, CallClose):
                assert text[at] in "}>)]"
