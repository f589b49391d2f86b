"""Unsupported requests, and bodies that are not valid requests."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import DovetailError, InvalidRequest, Request, Unsupported
from dovetail_protocols.chat import CODEC
from dovetail_protocols.chat.wire import ChatRequest

Json = dict[str, Any]

HELLO: Json = {"role": "user", "content": "Hello."}
FUNCTION: Json = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
LOOK: Json = {"type": "function", "function": FUNCTION}


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    body = {"model": "m", "messages": [HELLO], **fields}
    return CODEC.decode(msgspec.json.encode(body), headers or {})


FAULTS: list[tuple[Json, str]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "Hello."}, "messages"),
    ({"messages": [HELLO, {"role": "oracle", "content": "x"}]}, "messages[1].role"),
    ({"messages": [HELLO, {"role": 5}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ({"temperature": -1}, "temperature"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -5}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"seed": 2**70}, "seed"),
    ({"stop": [5]}, "stop[0]"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": 5}]}, "tools[0].custom"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes", "tools": [LOOK]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"functions": [FUNCTION], "function_call": {"name": "x"}}, "function_call"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=str)
def test_error_names_the_field(fields: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


REFUSED: list[tuple[Json, str]] = [
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_unsupported_field_is_rejected_by_name(fields: Json, param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        decode(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": "\xff"}', b"[" * 100_000])
def test_body_that_is_not_an_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        CODEC.decode(body, {})


def test_arguments_nested_too_deeply() -> None:
    message = b'{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": %s}}]}'
    for depth in range(1, 1100):
        body = b'{"model": "m", "messages": [' + message % (b"[" * depth + b"]" * depth) + b"]}"
        with contextlib.suppress(DovetailError):
            CODEC.decode(body, {})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NAMES = st.sampled_from([*ChatRequest.__struct_fields__, "role", "type", "function", "name"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function"])},
    optional={
        "content": st.text()
        | st.lists(
            st.dictionaries(st.sampled_from(["type", "text", "image_url", "file"]), JSON),
            max_size=2,
        ),
        "tool_calls": st.lists(
            st.dictionaries(st.sampled_from(["id", "type", "function", "custom"]), JSON), max_size=2
        ),
        "reasoning_content": JSON,
        "reasoning": JSON,
        "reasoning_segments": JSON,
        "function_call": JSON,
    },
)
FIELD = st.sampled_from(ChatRequest.__struct_fields__)


@given(fields=st.dictionaries(FIELD, JSON, max_size=4), messages=st.lists(MESSAGE, max_size=3))
def test_arbitrary_json_raises_only_dovetail_errors(fields: Json, messages: list[Json]) -> None:
    body = {"model": "m", "messages": messages, **fields}
    with contextlib.suppress(DovetailError):
        assert isinstance(CODEC.decode(msgspec.json.encode(body), {}), Request)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_raise_only_dovetail_errors(body: bytes) -> None:
    with pytest.raises(DovetailError):
        CODEC.decode(body, {})
