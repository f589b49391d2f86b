"""Errors in request bodies name the field by its path."""

import msgspec
import pytest

from dovetail_model import InvalidRequest
from dovetail_protocols import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Codec,
    json_depth,
    request_body,
)


class _Inner(msgspec.Struct):
    role: str


class _Outer(msgspec.Struct):
    items: list[_Inner] = []


FAULTS = [
    (b"{", None),
    (b"[]", None),
    (b'{"items": 3}', "items"),
    (b'{"items": [{"role": "a"}, {"role": 5}]}', "items[1].role"),
    (b"[" * 100_000, None),
]


@pytest.mark.parametrize(("body", "param"), FAULTS)
def test_error_names_the_field(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_body.convert(request_body.RequestBody(body).fields, _Outer)
    assert caught.value.param == param


def _nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


DEEP = _nested(json_depth.MAX_JSON_DEPTH + 1)


@pytest.mark.parametrize(
    ("codec", "body", "param"),
    [
        (
            MESSAGES,
            b'"messages": [], "tools": [{"name": "f", "input_schema": %b}]',
            "tools[0].input_schema",
        ),
        (
            CHAT,
            b'"messages": [], "tools": [{"function": {"name": "f", "parameters": %b}}]',
            "tools[0].function.parameters",
        ),
        (
            CHAT,
            b'"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": %b',
            "chat_template_kwargs.a.a",
        ),
        (
            CHAT,
            b'"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": %b}]',
            "messages[1].content.a",
        ),
        (
            CHAT,
            b'"messages": [], "response_format": {"json_schema": {"schema": %b}}',
            "response_format.json_schema.schema",
        ),
        (
            RESPONSES,
            b'"input": "x", "tools": [{"type": "function", "name": "f", "parameters": %b}]',
            "tools[0].parameters",
        ),
        (RESPONSES, b'"input": [{"role": "user", "content": [%b]}]', "input[0].content"),
        (COMPLETIONS, b'"prompt": "x", "unknown": [%b]', "unknown[0].a.a"),
    ],
)
def test_nesting_is_limited(codec: Codec, body: bytes, param: str) -> None:
    """The limit is far below the one of the decoder, at which everything after it fails."""
    with pytest.raises(InvalidRequest, match="more than 128 levels") as caught:
        codec.decode(b'{"model": "m", ' + body % DEEP + b"}", {})
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_nesting_beyond_the_decoder_is_limited_too() -> None:
    for levels in (900, 1_000, 100_000):
        body = b'{"model": "m", "input": "x", "tools": [%b]}' % _nested(levels)
        with pytest.raises(InvalidRequest, match="more than 128 levels"):
            RESPONSES.decode(body, {})


def test_deepest_value_is_accepted() -> None:
    value = msgspec.json.decode(_nested(json_depth.MAX_JSON_DEPTH))
    json_depth.check_depth(value, "x")
    with pytest.raises(InvalidRequest, match=r"x\.a\.a: must not be nested"):
        json_depth.check_depth({"a": value}, "x")


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"", 0),
        (b'"[[["', 0),
        (b"[]", 1),
        (b'{"a": [1, {"b": 2}], "c": []}', 3),
        (b"[" * 50_000 + b"]" * 50_000, 50_000),
        (b'[{"a":' * 2_000 + b"1" + b"}]" * 2_000, 4_000),
        (b"[[]," * 300 + b"[]" + b"]" * 300, 301),
        (b"[[],[]]" * 1_000, 2),
        # malformed
        (b"[" * 300, 300),
        (b"[{]}" * 300, 2),
        (b"]" * 300 + b"[" * 300, 300),
        (b'[["[[[[', 2),
        (b'["\\"[", ["\\\\", [[]]]]', 4),
        (b'["\\', 1),
    ],
)
def test_depth_of_json_text(text: bytes, depth: int) -> None:
    assert not json_depth.exceeds_depth(text, depth)
    if depth:
        assert json_depth.exceeds_depth(text, depth - 1)
