"""Raw values typed by the types that the schema allows."""

import json
from typing import Any

import pytest

from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.value import RawValueDecoder

ROOT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "nullable": {"type": "integer", "nullable": True},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "listed": {"oneOf": [{"type": "array"}, {"type": "null"}]},
        "mixed": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "linked": {"$ref": "#/$defs/a~1b"},
        "chained": {"allOf": [{"$ref": "#/$defs/chain"}]},
        "looped": {"$ref": "#/$defs/loop"},
        "choice": {"enum": ["a", "b"]},
        "level": {"enum": [1, 2]},
        "fixed": {"const": True},
        "shaped": {"properties": {"x": {}}},
        "upper": {"type": "STRING"},
        "any": {},
    },
    "additionalProperties": {"type": "integer"},
    "$defs": {
        "a/b": {"type": "object"},
        "chain": {"$ref": "#/$defs/a~1b"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "boolean"}]},
    },
}

TYPED = [
    ("text", "12", '"12"'),
    ("text", " null ", '" null "'),
    ("count", "12", "12"),
    ("count", " 12\n", "12"),
    ("count", "123456789012345678901234567890", "123456789012345678901234567890"),
    ("count", "1.50", "1.50"),
    ("count", "twelve", '"twelve"'),
    ("count", "null", "null"),
    ("count", '"12"', '"12"'),
    ("ratio", "1.10", "1.10"),
    ("ratio", "3", "3"),
    ("ratio", "-1e-7", "-1e-7"),
    ("flag", "true", "true"),
    ("flag", "False", "false"),
    ("maybe", "null", "null"),
    ("maybe", "None", "null"),
    ("maybe", "nullable", '"nullable"'),
    ("maybe", "12", '"12"'),
    ("nullable", "null", "null"),
    ("either", "12", "12"),
    ("either", "1.5", '"1.5"'),
    ("either", "12 apples", '"12 apples"'),
    ("listed", "[1, 'a', None]", '[1, "a", null]'),
    ("mixed", '["a"]', '["a"]'),
    ("mixed", "[sic]", '"[sic]"'),
    ("linked", '{"a": 1.0}', '{"a": 1.0}'),
    ("chained", "{'k': True}", '{"k": true}'),
    ("looped", "true", "true"),
    ("choice", "a", '"a"'),
    ("level", "2", "2"),
    ("fixed", "true", "true"),
    ("shaped", "{}", "{}"),
    ("upper", "5", '"5"'),
    ("any", "5", "5"),
    ("any", "five", '"five"'),
    ("any", '{"a": [1]}', '{"a": [1]}'),
    ("any", "{ not json }", '"{ not json }"'),
    ("unlisted", "7", "7"),
    ("text", "", '""'),
    ("count", "", '""'),
]


def value_of(key: str) -> RawValueDecoder:
    return RawValueDecoder(schemas.allowed_types(schemas.property_schema(ROOT, key, ROOT), ROOT))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("key", "text", "expected"), TYPED)
def test_typed(key: str, text: str, expected: str, size: int) -> None:
    value = value_of(key)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    out = "".join([value.feed(piece) for piece in pieces]) + value.end()
    assert out == expected
    assert not value.failed
    json.loads(out)


@pytest.mark.parametrize("size", [1, 1000])
def test_invalid_object_fails(size: int) -> None:
    value = value_of("linked")
    text = '{"a": nonsense}'
    for at in range(0, len(text), size):
        value.feed(text[at : at + size])
    value.end()
    assert value.failed


def test_strings_stream_from_their_first_character() -> None:
    value = value_of("text")
    assert [value.feed("a"), value.feed('"\n'), value.end()] == ['"a', '\\"\\n', '"']


def test_ambiguous_value_streams_once_its_type_is_known() -> None:
    value = value_of("maybe")
    assert [value.feed("nu"), value.feed("ts"), value.feed("!")] == ["", '"nuts', "!"]


def test_objects_stream_when_nothing_else_is_allowed() -> None:
    value = value_of("linked")
    assert [value.feed('{"a"'), value.feed(": 1}"), value.end()] == ['{"a"', ": 1}", ""]


def test_recursive_schema_is_read_once() -> None:
    many = [{"$ref": "#/$defs/expression"}] * 9
    root = {"$defs": {"expression": {"anyOf": [*many, {"allOf": many}, {"type": "integer"}]}}}
    assert schemas.allowed_types({"$ref": "#/$defs/expression"}, root) == {"integer"}
