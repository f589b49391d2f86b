"""A schema with a mistake is an error where the output must fit it."""

from typing import Any

import msgspec
import pytest

from dovetail_model import InvalidRequest
from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec
from dovetail_protocols.json_schema import check_schema

VALID: list[Any] = [
    {},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 5.0, "pattern": "^a$"},
    {"type": "OBJECT", "properties": {"a": True}, "required": ["a"], "x-own": 5},
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "prefixItems": [{}]},
    {"items": [{}, {"type": "null"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1, "b"]}}},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}], "additionalProperties": False},
    {"definitions": {"a/b": {}}, "$ref": "#/definitions/a~1b"},
]
INVALID: list[tuple[Any, str]] = [
    (5, "s"),
    (None, "s"),
    ({"type": "strnig"}, "s.type"),
    ({"type": []}, "s.type"),
    ({"properties": []}, "s.properties"),
    ({"properties": {"a": {"type": 5}}}, "s.properties.a.type"),
    ({"properties": {"a": "string"}}, "s.properties.a"),
    ({"required": "a"}, "s.required"),
    ({"required": [5]}, "s.required"),
    ({"enum": []}, "s.enum"),
    ({"enum": "a"}, "s.enum"),
    ({"anyOf": []}, "s.anyOf"),
    ({"anyOf": [{"type": "x"}]}, "s.anyOf[0].type"),
    ({"items": 5}, "s.items"),
    ({"items": [{"type": "x"}]}, "s.items[0].type"),
    ({"minLength": -1}, "s.minLength"),
    ({"minItems": 1.5}, "s.minItems"),
    ({"maxItems": True}, "s.maxItems"),
    ({"minimum": "0"}, "s.minimum"),
    ({"pattern": 5}, "s.pattern"),
    ({"$ref": "#/$defs/missing"}, "s.$ref"),
    ({"$ref": "https://example.com/schema"}, "s.$ref"),
    ({"enum": [1], "$ref": "#/enum/0"}, "s.$ref"),
    ({"anyOf": [{}], "$ref": "#/anyOf/7"}, "s.$ref"),
    ({"additionalProperties": {"type": "x" * 200}}, "s.additionalProperties.type"),
]


@pytest.mark.parametrize("schema", VALID, ids=str)
def test_valid_schemas(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(("schema", "path"), INVALID, ids=str)
def test_mistakes_are_named_by_their_path(schema: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "s")
    assert caught.value.param == path
    assert len(caught.value.message) < 200


BAD = {"type": "object", "properties": {"a": {"type": "strnig"}}}
CHAT_BODY = {"messages": [{"role": "user", "content": "Hi"}]}
FUNCTION = {"name": "f", "parameters": BAD, "strict": True}
STRICT: list[tuple[Codec, dict[str, Any], str]] = [
    (
        CHAT,
        CHAT_BODY
        | {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": BAD, "strict": True},
            }
        },
        "response_format.json_schema.schema.properties.a.type",
    ),
    (
        CHAT,
        CHAT_BODY | {"response_format": {"type": "json_schema", "json_schema": {"strict": True}}},
        "response_format.json_schema.schema",
    ),
    (
        CHAT,
        CHAT_BODY | {"tools": [{"type": "function", "function": FUNCTION}]},
        "tools[0].function.parameters.properties.a.type",
    ),
    (
        RESPONSES,
        {
            "input": "Hi",
            "text": {"format": {"type": "json_schema", "schema": BAD, "strict": True}},
        },
        "text.format.schema.properties.a.type",
    ),
    (
        RESPONSES,
        {"input": "Hi", "tools": [{"type": "function"} | FUNCTION]},
        "tools[0].parameters.properties.a.type",
    ),
    (
        MESSAGES,
        CHAT_BODY | {"output_config": {"format": {"type": "json_schema", "schema": BAD}}},
        "output_config.format.schema.properties.a.type",
    ),
    (
        MESSAGES,
        CHAT_BODY | {"tools": [{"name": "f", "input_schema": BAD, "strict": True}]},
        "tools[0].input_schema.properties.a.type",
    ),
]


@pytest.mark.parametrize(("codec", "body", "path"), STRICT, ids=lambda one: str(one)[:40])
def test_invalid_schema_with_strict_is_an_error(
    codec: Codec, body: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.decode(msgspec.json.encode({"model": "m", **body}), {})
    assert caught.value.param == path


def test_invalid_schema_without_strict_is_accepted() -> None:
    function = {"name": "f", "parameters": BAD}
    body = CHAT_BODY | {"model": "m", "tools": [{"type": "function", "function": function}]}
    assert CHAT.decode(msgspec.json.encode(body), {}).tools


def test_a_long_name_is_not_copied_to_the_path_of_every_value() -> None:
    schema = {"properties": {"n" * 100_000: {"anyOf": [{"type": "string"}, {"type": "text"}]}}}
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "guided_json")
    assert len(str(caught.value)) < 1_000
