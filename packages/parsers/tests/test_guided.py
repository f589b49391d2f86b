"""Grammars of all families: they accept what the writer writes and reject violations."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gbnf_reader import Gbnf, read
from generated_outputs import calls
from guided_requests import (
    BOOK,
    BY_NAME,
    CANCEL,
    GOOD,
    OFFERED,
    ONE,
    REASONING_FAMILIES,
    REQUIRED,
    call,
    matches_schema,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_cases import TOOLS

from dovetail_model import (
    InvalidRequest,
    OutputBlock,
    OutputFormat,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolChoice,
    Unsupported,
)
from dovetail_parsers import build_guided_grammar, parse, write_message
from dovetail_parsers.family import Family

EACH = pytest.mark.parametrize("name", BY_NAME)
SETTINGS = settings(max_examples=12)


def text_of(family: Family, tools: list[Any], choice: ToolChoice, **more: Any) -> str | None:
    more.setdefault("in_reasoning", False)
    parsers = (family.tool_parser, family.reasoning_parser)
    made = build_guided_grammar(*parsers, tools=tools, choice=choice, **more)
    return None if made is None else made.text


@cache
def grammar(
    name: str, choice: ToolChoice, inside: bool = False, allow_reasoning: bool = True
) -> Gbnf:
    found = text_of(
        BY_NAME[name], OFFERED, choice, in_reasoning=inside, allow_reasoning=allow_reasoning
    )
    assert found is not None
    return read(found)


def in_order(call: ToolCallBlock) -> ToolCallBlock:
    """Return the call with its arguments in the order of the schema."""
    if call.custom:
        return call
    spec = next(t["function"] for t in TOOLS if t.get("function", {}).get("name") == call.name)
    value = _in_order(json.loads(call.arguments), spec["parameters"])
    ascii_only = call.arguments.isascii()
    return ToolCallBlock("", call.name, json.dumps(value, ensure_ascii=ascii_only))


def _in_order(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_in_order(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema["properties"]
    return {key: _in_order(value[key], known[key]) for key in known if key in value}


@cache
def case_tools_grammar(name: str) -> Gbnf:
    found = text_of(BY_NAME[name], TOOLS, REQUIRED)
    assert found is not None
    return read(found)


@EACH
@SETTINGS
@given(data=st.data())
def test_output_of_the_writer_is_accepted(name: str, data: st.DataObject) -> None:
    family = BY_NAME[name]
    blocks: list[OutputBlock] = data.draw(st.lists(calls().map(in_order), min_size=1, max_size=3))
    if family.reasoning_parser and data.draw(st.booleans()):
        blocks.insert(0, ReasoningBlock("So <b>{[what] is</b> asked?\n"))
    assert case_tools_grammar(name).accepts(write_message(blocks, family))


@EACH
@SETTINGS
@given(data=st.data())
def test_accepted_output_parses_as_calls(name: str, data: st.DataObject) -> None:
    """The parser reads valid calls from any output that the grammar allows."""
    family = BY_NAME[name]
    inside = bool(family.reasoning_parser) and data.draw(st.booleans())
    random = data.draw(st.randoms(use_true_random=False))
    text = grammar(name, REQUIRED, inside).sample(random, data.draw(st.integers(0, 200)))
    message = parse(
        text,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        tools=OFFERED,
        in_reasoning=inside,
    )
    made = [block for block in message.blocks if block.type == "tool_call"]
    assert made
    assert {block.type for block in message.blocks} <= {"reasoning", "tool_call"}
    assert all(block.complete and matches_schema(block) for block in made), text


@EACH
def test_required_call(name: str) -> None:
    family, rules = BY_NAME[name], grammar(name, REQUIRED)
    good = write_message([call(GOOD)], family)
    assert rules.accepts(good)
    assert rules.accepts(
        write_message([ToolCallBlock("", "apply_patch", "*** x", custom=True)], family)
    )
    assert not rules.accepts("")
    assert not rules.accepts(good[:-12])
    assert not rules.admits("Sure, let me book that.")
    assert not rules.admits(good + "So")


@EACH
@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Paris"},
        {"seat": "aisle"},
        {"city": "Paris", "seat": "roof"},
        {"city": "Paris", "days": "three", "seat": "aisle"},
        {"city": "Paris", "days": 3.5, "seat": "aisle"},
        {"city": "Paris", "seat": "aisle", "guest": {"age": 3}},
        {"city": "Paris", "seat": "aisle", "guest": {"name": "Ann", "age": "old"}},
        {"city": "Paris", "seat": "aisle", "rush": "perhaps"},
        {"city": "Paris", "seat": "aisle", "colour": "red"},
        {"seat": "aisle", "city": "Paris"},
    ],
    ids=json.dumps,
)
def test_arguments_follow_the_schema(name: str, arguments: dict[str, Any]) -> None:
    assert not grammar(name, REQUIRED).accepts(write_message([call(arguments)], BY_NAME[name]))


@EACH
def test_only_offered_tools_with_their_own_arguments(name: str) -> None:
    family, rules = BY_NAME[name], grammar(name, REQUIRED)
    assert rules.accepts(write_message([call({"id": 1}, "cancel")], family))
    assert not rules.accepts(write_message([call(GOOD, "cancel")], family))
    assert not rules.accepts(write_message([call(GOOD, "nobody")], family))
    named = grammar(name, ToolChoice("named", "cancel"))
    assert named.accepts(write_message([call({"id": 1}, "cancel")], family))
    assert not named.accepts(write_message([call(GOOD)], family))


@EACH
def test_one_call_if_parallel_calls_are_disabled(name: str) -> None:
    family = BY_NAME[name]
    two = write_message([call(GOOD), call({"id": 1}, "cancel")], family)
    assert grammar(name, REQUIRED).accepts(two)
    assert not grammar(name, ONE).admits(two)
    assert grammar(name, ONE).accepts(write_message([call(GOOD)], family))


@pytest.mark.parametrize("name", REASONING_FAMILIES)
def test_reasoning_may_come_first_and_open_reasoning_is_closed(name: str) -> None:
    family = BY_NAME[name]
    reasoning = ReasoningBlock("They want a seat.")
    with_reasoning = write_message([reasoning, call(GOOD)], family)
    assert grammar(name, REQUIRED).accepts(with_reasoning)
    assert not grammar(name, REQUIRED, allow_reasoning=False).admits(with_reasoning)
    rest = with_reasoning[with_reasoning.index("They") :]
    assert grammar(name, REQUIRED, inside=True).accepts(rest)
    assert not grammar(name, REQUIRED, inside=True).accepts("They want a seat.")


@EACH
def test_prose_is_free_and_calls_are_constrained(name: str) -> None:
    """Tool choice auto with a strict tool, or with at most one call."""
    family = BY_NAME[name]
    found = text_of(family, [{**BOOK, "strict": True}], ToolChoice())
    assert found is not None
    rules = read(found)
    prose = write_message([TextBlock("So: 1 < 2 is [true] and {so} on.")], family)
    assert rules.accepts(prose)
    assert rules.accepts(write_message([call(GOOD)], family))
    assert not rules.accepts(write_message([call({"city": "Paris"})], family))
    one = text_of(family, OFFERED, ToolChoice(parallel=False))
    assert one is not None
    rules = read(one)
    assert rules.accepts(prose)
    assert rules.accepts(write_message([call(GOOD)], family))
    assert not rules.accepts(write_message([call(GOOD), call({"id": 1}, "cancel")], family))


@EACH
def test_no_call_if_none_is_allowed(name: str) -> None:
    family = BY_NAME[name]
    found = text_of(family, OFFERED, ToolChoice("none"))
    assert found is not None
    rules = read(found)
    assert rules.accepts(write_message([TextBlock("So: 1 < 2 is [true] and {so} on.")], family))
    assert not rules.accepts(write_message([call(GOOD)], family))


@EACH
def test_only_allowed_tools_are_called(name: str) -> None:
    family = BY_NAME[name]
    found = text_of(family, OFFERED, ToolChoice(allowed=frozenset({"cancel"})))
    assert found is not None
    rules = read(found)
    assert rules.accepts(write_message([TextBlock("So: 1 < 2 is [true] and {so} on.")], family))
    assert rules.accepts(write_message([call({"id": 1}, "cancel")], family))
    assert not rules.accepts(write_message([call(GOOD)], family))


@EACH
def test_visible_output_is_json(name: str) -> None:
    family = BY_NAME[name]
    output = OutputFormat("json_schema", schema=CANCEL["parameters"])
    alone = text_of(family, OFFERED, ToolChoice("none"), output=output)
    both = text_of(family, OFFERED, ToolChoice(), output=output)
    assert alone is not None
    assert both is not None
    good, bad = (write_message([TextBlock(t)], family) for t in ('{"id": 7}', '{"id": "x"}'))
    booking = write_message([call(GOOD)], family)
    for rules in (read(alone), read(both)):
        assert rules.accepts(good)
        assert not rules.accepts(bad)
        assert not rules.admits("So")
    assert read(both).accepts(booking)
    assert not read(alone).accepts(booking)
    any_object = text_of(family, [], ToolChoice(), output=OutputFormat("json_object"))
    assert any_object is not None
    free = '{"a": [1, {"b": null}], "c": -1.5e3}'
    assert read(any_object).accepts(write_message([TextBlock(free)], family))
    assert not read(any_object).accepts(write_message([TextBlock("[1]")], family))


@EACH
def test_same_request_yields_the_same_grammar_of_limited_size(name: str) -> None:
    first, second = (text_of(BY_NAME[name], OFFERED, REQUIRED) for _ in range(2))
    assert first == second
    many = [{**BOOK, "name": f"book{i}"} for i in range(100)]
    grown = text_of(BY_NAME[name], many, REQUIRED)
    assert first is not None
    assert grown is not None
    assert len(grown) < len(first) + 100 * 700


def test_request_without_constraints_has_no_grammar() -> None:
    assert build_guided_grammar("hermes", "qwen3", tools=OFFERED, in_reasoning=False) is None
    none = ToolChoice("none")
    assert build_guided_grammar("hermes", None, tools=[], choice=none, in_reasoning=False) is None


def test_impossible_choice_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="nobody"):
        build_guided_grammar(
            "hermes", None, tools=OFFERED, choice=ToolChoice("named", "nobody"), in_reasoning=False
        )
    with pytest.raises(InvalidRequest, match="no tools"):
        build_guided_grammar("hermes", None, tools=[], choice=REQUIRED, in_reasoning=False)
    with pytest.raises(Unsupported, match="tool parser"):
        build_guided_grammar(None, "qwen3", tools=OFFERED, choice=REQUIRED, in_reasoning=False)


def test_docs_name_every_family_with_a_grammar() -> None:
    page = Path(__file__).parents[3] / "docs" / "guided-decoding.md"
    table = page.read_text().partition("## Families")[2].partition("## Schemas")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    named = [name.strip() for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(BY_NAME)
