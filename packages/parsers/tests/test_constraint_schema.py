"""JSON schemas as grammars: what each keyword allows and rejects."""

import json
from typing import Any

import pytest
from gbnf_reader import Gbnf, read
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import OutputFormat, ToolChoice
from dovetail_parsers import build_guided_grammar

LINKED = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
        }
    },
    "$ref": "#/$defs/node",
}
UNION = {"anyOf": [{"type": "string"}, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}
PAIR = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}
BASE = {
    "$defs": {"base": {"properties": {"id": {"type": "integer"}}, "required": ["id"]}},
    "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"on": {"type": "boolean"}}}],
    "type": "object",
}
EITHER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}
THREE = {"type": "object", "properties": {k: {"type": "integer"} for k in "abc"}, "required": ["b"]}

CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "string"}, ['"a\\n\\u00e9é"', '""'], ["a", '"a', '"\n"', "1", '"\\x"']),
    ({"type": "integer"}, ["0", "-12", "7" * 40], ["1.5", "01", "-0", '"1"', "", "7" * 41]),
    ({"type": "number"}, ["0.5", "-1e-7", "1E+300", "-0.0"], [".5", "1.", "+1", "NaN"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    ({"type": "null"}, ["null"], ["None", ""]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"type": "integer", "nullable": True}, ["1", "null"], ['"a"']),
    ({"enum": ["a", 1, None, 'é"\\']}, ['"a"', "1", "null", '"é\\"\\\\"'], ['"b"', "2"]),
    ({"const": {"k": [1]}}, ['{"k": [1]}'], ['{"k": [2]}', "{}"]),
    (
        {"type": "array", "items": {"type": "integer"}},
        ["[]", "[1,2]", "[1, 2]"],
        ["[1,  2]", "[,]"],
    ),
    (
        {"type": "array", "minItems": 2, "maxItems": 3},
        ["[1, 2]", "[1, 2, 3]"],
        ["[1]", "[1,2,3,4]"],
    ),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    (PAIR, ['["a", 1]'], ['["a"]', "[1, 1]", '["a", 1, 2]']),
    (
        THREE,
        ['{"b": 1}', '{"a": 1, "b": 1}', '{"b":1,"c":1}'],
        ["{}", '{"a": 1}', '{"b": 1, "a": 1}'],
    ),
    ({"type": "object"}, ["{}", '{"x": {"y": [null]}}'], ["[]", "{ }", '{"x": }']),
    ({"type": "object", "properties": {}}, ["{}"], ['{"x": 1}']),
    ({"additionalProperties": {"type": "integer"}, "type": "object"}, ['{"x": 1}'], ['{"x": "y"}']),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"x": 1}']),
    ({"type": "object", "required": ["x"]}, ['{"x": [1]}'], ["{}"]),
    (LINKED, ['{"value": 1, "next": {"value": 2, "next": null}}'], ['{"value": 1, "next": {}}']),
    (LINKED, ['{"value": 1, "children": [{"value": 2}]}'], ['{"value": 1, "children": [2]}']),
    (UNION, ['"a"', '["a", ["b"]]'], ["1", "[1]"]),
    (
        BASE,
        ['{"id": 1}', '{"id": 1, "on": true}'],
        ["{}", '{"id": "x"}'],
    ),
    (EITHER, ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}'], ["{}"]),
    (
        {"type": "string", "pattern": "^[a-z]{2,3}-\\d+$"},
        ['"ab-1"', '"abc-12"'],
        ['"a-1"', '"abcd-1"'],
    ),
    (
        {"type": "string", "pattern": "^(?:yes|no)[^a-z]?$"},
        ['"yes"', '"no!"'],
        ['"maybe"', '"noa"'],
    ),
    ({"type": "string", "pattern": "^a|b$"}, ['"anything"'], ["1"]),
    ({"type": "string", "pattern": "^(a*)*$"}, ['"anything"'], ["1"]),
    ({"type": "string", "pattern": "loose"}, ['"anything"'], ["1"]),
    ({"type": "string", "format": "date"}, ['"2026-11-15"'], ['"tomorrow"']),
    ({"type": "string", "format": "email"}, ['"anything"'], ["1"]),
    ({}, ["1", '{"a": [true]}', '"x"'], ["nothing"]),
    ({"$ref": "#/nowhere"}, ["1", "{}"], ["nothing"]),
    ({"$ref": "#"}, ["1"], ["nothing"]),
]


def rules_of(schema: Any) -> Gbnf:
    output = OutputFormat("json_schema", schema=schema)
    found = build_guided_grammar(None, None, tools=[], output=output, in_reasoning=False)
    assert found is not None
    return read(found.text)


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda v: json.dumps(v)[:60])
def test_keyword(schema: Any, good: list[str], bad: list[str]) -> None:
    rules = rules_of(schema)
    for text in good:
        assert rules.accepts(text), text
    for text in bad:
        assert not rules.accepts(text), text


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_any_json_is_accepted_as_value_and_as_constant(value: Any) -> None:
    text = json.dumps(value)
    assert rules_of({}).accepts(text)
    spelled = json.dumps(value, ensure_ascii=False)
    assert rules_of({"const": value}).accepts(spelled)


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_from_users_are_never_interpreted_as_grammar(name: str, key: str) -> None:
    """Names and keys with quotes, brackets or line breaks stay literal."""
    schema = {"type": "object", "properties": {key: {"enum": [key]}}, "required": [key]}
    found = build_guided_grammar(
        "hermes",
        None,
        tools=[{"name": name, "parameters": schema}],
        choice=ToolChoice("required"),
        in_reasoning=False,
    )
    assert found is not None
    body = {"name": name, "arguments": {key: key}}
    call = f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"
    assert read(found.text).accepts(call)


def test_infinite_schemas_are_limited() -> None:
    """References that double at every step and never repeat an object."""
    doubling = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    growing = {"type": "object", "properties": {"x": {"$ref": "#", "type": "object"}}}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for schema in ({"$defs": doubling, "$ref": "#/$defs/d0"}, growing, deep):
        for parser in (None, "minimax_m3", "qwen3_coder"):
            tool = {"name": "f", "parameters": {"type": "object", "properties": {"p": schema}}}
            found = build_guided_grammar(
                parser,
                None,
                tools=[tool] if parser else [],
                choice=ToolChoice("required" if parser else "auto"),
                output=OutputFormat("json_schema", schema=schema),
                in_reasoning=False,
            )
            assert found is not None
            assert len(found.text) < 200_000
            read(found.text)
