"""Grammars in the notations of other engines, checked by the engines' matchers with real
vocabularies: valid calls are accepted, near misses are rejected, and the parser reads valid calls
from any output that the masks allow.

`DOVETAIL_WALKS=20` runs more random walks per family than the one in CI.
"""

import os
from functools import cache
from random import Random
from typing import Any

import pytest
from grammar_matchers import READERS, accepts, matcher, reads
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
from random_walks import read, walk
from vocabularies import OWN, Vocabulary, encode, vocabulary_of

from dovetail_model import (
    Diagnostic,
    OutputBlock,
    OutputFormat,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolChoice,
    Unsupported,
    fold,
)
from dovetail_parsers import build_guided_grammar, write_message

WALKS = int(os.environ.get("DOVETAIL_WALKS", "1"))
# a structural tag contains the same rules as the EBNF: one family is sufficient
PLACES = [
    pytest.param(
        *(syntax, name, markers),
        id=f"{syntax}-{name}-{'tokens' if markers else 'text'}",
        # markers as text: for all families that support it in `make soak`
        marks=() if markers or name in ("hermes", "mistral", "llama3_json") else pytest.mark.long,
    )
    for syntax in READERS
    for name in BY_NAME
    for markers in (True, False)
    if (markers or name not in OWN) and (syntax != "structural_tag" or name == "hermes")
]
EVERYWHERE = pytest.mark.parametrize(("syntax", "name", "markers"), PLACES)
SEAT = ReasoningBlock("They want a seat.")
PROSE = TextBlock("So: 1 < 2 is [true] and {so} on.")
TWO: list[OutputBlock] = [call(GOOD), call({"id": 1}, "cancel")]


class Place:
    """A family's outputs in one notation and one vocabulary."""

    def __init__(self, syntax: Any, name: str, markers: bool) -> None:
        self.syntax = syntax
        self.family = BY_NAME[name]
        self.vocabulary: Vocabulary = vocabulary_of(name, markers=markers)

    def text(self, tools: list[Any], choice: ToolChoice, **more: Any) -> str:
        more.setdefault("in_reasoning", False)
        found = build_guided_grammar(
            self.family.tool_parser,
            self.family.reasoning_parser,
            tools=tools,
            choice=choice,
            syntax=self.syntax,
            tokens=self.vocabulary.controls,
            **more,
        )
        assert found is not None
        assert found.syntax == self.syntax
        return found.text

    def takes(self, grammar: str, output: str | list[OutputBlock], whole: bool = True) -> bool:
        """Whether it is a complete output; with `whole=False`, whether more may follow it."""
        raw = output if isinstance(output, str) else write_message(output, self.family)
        ids = encode(raw, self.vocabulary)
        if whole:
            return accepts(self.syntax, grammar, self.vocabulary, ids)
        return reads(self.syntax, grammar, self.vocabulary, ids) != "refused"


@cache
def place(syntax: str, name: str, markers: bool) -> Place:
    return Place(syntax, name, markers)


@EVERYWHERE
def test_required_call(syntax: str, name: str, markers: bool) -> None:
    at = place(syntax, name, markers)
    rules = at.text(OFFERED, REQUIRED)
    assert at.takes(rules, [call(GOOD)])
    assert at.takes(rules, TWO)
    assert at.takes(rules, [ToolCallBlock("", "apply_patch", "*** x", custom=True)])
    assert not at.takes(rules, [call({"city": "Paris"})])
    assert not at.takes(rules, [call({"city": "Paris", "days": "three", "seat": "aisle"})])
    assert not at.takes(rules, [call(GOOD, "cancel")])
    assert not at.takes(rules, [call(GOOD, "nobody")], whole=False)
    assert not at.takes(rules, "Sure, let me book that.", whole=False)
    named = at.text(OFFERED, ToolChoice("named", "cancel"))
    assert at.takes(named, [call({"id": 1}, "cancel")])
    assert not at.takes(named, [call(GOOD)], whole=False)
    one = at.text(OFFERED, ONE)
    assert at.takes(one, [call(GOOD)])
    assert not at.takes(one, TWO, whole=False)


EDIT = {
    "name": "edit",
    "parameters": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "mode": {"enum": ["w", "a"]},
            "line": {"type": "integer"},
        },
        "required": ["path", "text"],
    },
}


@EVERYWHERE
def test_parameters_may_be_omitted_after_texts(syntax: str, name: str, markers: bool) -> None:
    """The end of a call may start like the omitted parameter."""
    at = place(syntax, name, markers)
    rules = at.text([EDIT], REQUIRED)
    texts = {"path": "/a b", "text": "x = 1"}
    for more in ({}, {"mode": "w"}, {"line": 1}, {"mode": "a", "line": 7}):
        assert at.takes(rules, [call({**texts, **more}, "edit")]), more
        assert at.takes(rules, [call(texts, "edit"), call({**texts, **more}, "edit")]), more


@EVERYWHERE
def test_empty_properties_may_allow_others(syntax: str, name: str, markers: bool) -> None:
    at = place(syntax, name, markers)
    counts = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    holder = {"type": "object", "properties": {"counts": counts}, "required": ["counts"]}
    rules = at.text([{"name": "count", "parameters": holder}], REQUIRED)
    tree = name.startswith("minimax_m3")  # there such an object is JSON in a tag
    if not tree:
        assert at.takes(rules, [call({"counts": {}}, "count")])
        assert at.takes(rules, [call({"counts": {"a": 1, "b": 2}}, "count")])
        assert not at.takes(rules, [call({"counts": {"a": "x"}}, "count")])
    closed = {**holder, "properties": {"counts": {"type": "object", "properties": {}}}}
    rules = at.text([{"name": "count", "parameters": closed}], REQUIRED)
    assert at.takes(rules, [call({"counts": {}}, "count")])
    assert tree or not at.takes(rules, [call({"counts": {"a": 1}}, "count")])


def bomb(schema: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the grammar of a tool with this one parameter, and its notes."""
    at = place("lark", "hermes", True)
    holder = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    made = build_guided_grammar(
        *(at.family.tool_parser, at.family.reasoning_parser),
        tools=[{"name": "t", "parameters": holder}],
        choice=REQUIRED,
        in_reasoning=False,
        syntax="lark",
        tokens=at.vocabulary.controls,
    )
    assert made is not None
    return made.text, made.notes


TOO_LARGE = "a schema is too large or too deep and is only partly enforced"
TWICE = {f"d{n}": {"anyOf": [{"$ref": f"#/properties/x/$defs/d{n + 1}"}] * 2} for n in range(30)}


@pytest.mark.parametrize(
    ("schema", "value", "note"),
    [
        pytest.param(
            {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}},
            {"p1": "a"},
            TOO_LARGE,
            id="too many properties",
        ),
        pytest.param(
            {"allOf": [{"$ref": "#/properties/x/$defs/d0"}], "$defs": TWICE},
            {"p1": "a"},
            TOO_LARGE,
            id="references that double",
        ),
        pytest.param(
            {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
            "a",
            "pattern is not enforced",
            id="repetitions of repetitions",
        ),
        pytest.param(
            {"type": "integer", "minimum": 10**17, "maximum": 10**18 - 3},
            10**17,
            "minimum and maximum of huge integers are not enforced",
            id="too many digits",
        ),
    ],
)
def test_schemas_that_break_an_engine_are_noted_and_not_enforced(
    schema: dict[str, Any], value: object, note: str
) -> None:
    at = place("lark", "hermes", True)
    rules, notes = bomb(schema)
    assert note in notes
    assert at.takes(rules, [call({"x": value}, "t")])


def test_bounds_that_libraries_write_are_enforced() -> None:
    bound = 2**53 - 1
    at = place("lark", "hermes", True)
    rules, notes = bomb({"type": "integer", "minimum": -bound, "maximum": bound})
    assert notes == ()
    assert at.takes(rules, [call({"x": bound}, "t")])
    assert not at.takes(rules, [call({"x": bound + 1}, "t")])


@EVERYWHERE
def test_prose_and_structured_output(syntax: str, name: str, markers: bool) -> None:
    at = place(syntax, name, markers)
    auto = at.text([{**BOOK, "strict": True}], ToolChoice())
    assert at.takes(auto, [PROSE])
    assert at.takes(auto, [call(GOOD)])
    assert not at.takes(auto, [call({"city": "Paris"})])
    single_call = at.text(OFFERED, ToolChoice(parallel=False))
    assert at.takes(single_call, [PROSE])
    assert at.takes(single_call, [call(GOOD)])
    assert not at.takes(single_call, TWO)
    none = at.text(OFFERED, ToolChoice("none"))
    assert at.takes(none, [PROSE])
    assert not at.takes(none, [call(GOOD)])
    output = OutputFormat("json_schema", schema=CANCEL["parameters"])
    structured = at.text(OFFERED, ToolChoice(), output=output)
    assert at.takes(structured, [TextBlock('{"id": 7}')])
    assert at.takes(structured, [call(GOOD)])
    assert not at.takes(structured, [TextBlock('{"id": "x"}')])
    free = at.text([], ToolChoice(), output=OutputFormat("json_object"))
    assert at.takes(free, [TextBlock('{"a": [1, {"b": null}], "c": -1.5e3}')])
    assert not at.takes(free, [TextBlock("[1]")])


@pytest.mark.parametrize(
    ("syntax", "name", "markers"), [p for p in PLACES if p.values[1] in REASONING_FAMILIES]
)
def test_reasoning_comes_first(syntax: str, name: str, markers: bool) -> None:
    at = place(syntax, name, markers)
    raw = write_message([SEAT, call(GOOD)], at.family)
    assert at.takes(at.text(OFFERED, REQUIRED), raw)
    assert not at.takes(at.text(OFFERED, REQUIRED, allow_reasoning=False), raw, whole=False)
    inside = at.text(OFFERED, REQUIRED, in_reasoning=True)
    assert at.takes(inside, raw[raw.index("They") :])
    assert not at.takes(inside, "They want a seat.")


@EVERYWHERE
def test_any_output_under_the_masks_parses_as_calls(syntax: str, name: str, markers: bool) -> None:
    at = place(syntax, name, markers)
    insides = (False, True) if at.family.reasoning_parser else (False,)
    for inside in insides:
        rules = at.text(OFFERED, REQUIRED, in_reasoning=inside)
        for seed in range(WALKS):
            found = matcher(syntax, rules, at.vocabulary)
            ids = walk(found, at.family, at.vocabulary, Random(f"{name}{seed}"))
            if ids is None:  # stuck in a long value
                continue
            events = read(ids, at.family, at.vocabulary, OFFERED, inside)
            codes = {event.code for event in events if isinstance(event, Diagnostic)}
            raw = at.vocabulary.text(ids)
            if syntax == "ebnf" and "special_token_in_value" in codes:
                continue  # EBNF matches texts: it cannot exclude the token of the same text
            assert codes <= {"stray_marker"}, raw
            blocks = fold(events).blocks
            made = [block for block in blocks if block.type == "tool_call"]
            assert made, raw
            assert {block.type for block in blocks} <= {"reasoning", "tool_call"}, raw
            assert all(block.complete and matches_schema(block) for block in made), raw


@pytest.mark.parametrize("syntax", ["gbnf", *READERS])
def test_marker_that_is_a_token_is_required_as_token(syntax: Any) -> None:
    made = build_guided_grammar(
        "hermes",
        None,
        tools=[CANCEL],
        choice=REQUIRED,
        in_reasoning=False,
        syntax=syntax,
        tokens={"<tool_call>": 5, "</tool_call>": 6, "<|im_end|>": 7},
    )
    assert made is not None
    shown = {"gbnf": "<[{}]>", "lark": "<[{}]>"}.get(syntax, "Token({})")
    assert shown.format(5) in made.text
    assert shown.format(6) in made.text
    assert shown.format(7) not in made.text
    assert '"<tool_call>' not in made.text


@pytest.mark.parametrize("syntax", READERS)
def test_spelled_out_marker_is_rejected_if_it_is_a_token(syntax: str) -> None:
    at = place(syntax, "hermes", True)
    rules = at.text([CANCEL], REQUIRED)
    spelled = vocabulary_of("hermes", markers=False)
    ids = encode(write_message([call({"id": 1}, "cancel")], at.family), spelled)
    assert reads(syntax, rules, at.vocabulary, ids) == "refused"


def test_unknown_notation_is_rejected() -> None:
    with pytest.raises(Unsupported, match="morse"):
        build_guided_grammar("hermes", None, tools=[], in_reasoning=False, syntax="morse")  # type: ignore[arg-type]
