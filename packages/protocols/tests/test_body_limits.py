"""Limits on the content of a body: checked without decoding it, with the field in the error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    InvalidRequest,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_protocols import RequestLimits, check_body, check_request, count_values_up_to

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a,"[{\\é\n', max_size=200),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('b:,"\\', max_size=4), inner),
    max_leaves=40,
)


def values(value: Any) -> int:
    """Containers, and items after the first of their container."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(values, inner))


def check(body: Any, **limits: int) -> None:
    check_body(json.dumps(body).encode(), RequestLimits(**limits))


@given(body=st.dictionaries(st.text('b:,"\\', max_size=4), JSON), ascii=st.booleans())
def test_values_are_counted_exactly(body: dict[str, Any], ascii: bool) -> None:
    data = json.dumps(body, ensure_ascii=ascii).encode()
    count = values(body)
    check_body(data, RequestLimits(max_values=count))
    with pytest.raises(InvalidRequest, match="at most"):
        check_body(data, RequestLimits(max_values=count - 1))
    assert count_values_up_to(data) > count


@pytest.mark.parametrize("text", ["x" * 200_000, '"' * 200_000, "\\" * 100_001, '[",{' * 50_000])
def test_long_texts_are_one_value(text: str) -> None:
    check({"messages": [{"content": text}, {}]}, max_values=5, max_item_values=2)


def test_too_many_tools() -> None:
    check({"tools": [{}] * 3}, max_tools=3)
    with pytest.raises(InvalidRequest) as raised:
        check({"model": "m", "tools": [{}] * 4}, max_tools=3)
    assert raised.value.message == "tools: must have at most 3 tools, got 4"
    assert raised.value.param == "tools"


@pytest.mark.parametrize("field", ["messages", "input"])
def test_too_many_messages(field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check({field: [{"role": "user", "content": "x"}] * 4}, max_messages=3)
    assert raised.value.message == f"{field}: must have at most 3 items, got 4"


def test_too_large_tool() -> None:
    tools = [{"name": "a"}, {"name": "b" * 100}]
    check({"tools": tools}, max_tool_bytes=130)
    with pytest.raises(InvalidRequest, match=r"tools\[1\]: must have at most 100 bytes") as raised:
        check({"tools": tools, "x": 1}, max_tool_bytes=100)
    assert raised.value.param == "tools[1]"


@pytest.mark.parametrize("value", ["x" * 99, [1] * 40, {"a": {"b": "x" * 90}}, ["x" * 50] * 2])
def test_too_large_other_field(value: Any) -> None:
    check({"other": value, "model": "m"}, max_other_field_bytes=200)
    for body in ({"other": value, "model": "m"}, {"model": "m", "other": value}):
        with pytest.raises(InvalidRequest, match="other: must have at most 80 bytes"):
            check(body, max_other_field_bytes=80)


@pytest.mark.parametrize("field", ["messages", "input", "system", "prompt", "tokens"])
def test_fields_with_content_may_be_large(field: str) -> None:
    check({field: ["x" * 200]}, max_other_field_bytes=80, max_tool_bytes=80)


def test_too_many_values_in_one_item() -> None:
    body = {"messages": [{"content": "x"}, {"content": [1] * 9}]}
    check(body, max_item_values=11)
    with pytest.raises(InvalidRequest, match=r"messages\[1\]: must have at most 10 JSON values"):
        check(body, max_item_values=10)
    check({"prompt": [1] * 99}, max_item_values=10)  # each item has one value


@pytest.mark.parametrize(
    "body", [b"", b"[", b'{"a', b'{"a":"\\', b"]]}}", b'{"a":[1,', b"\xff{", b"5"]
)
def test_malformed_bodies_are_left_to_the_decoder(body: bytes) -> None:
    check_body(body)


def test_decoded_requests() -> None:
    result = ToolResultBlock("id", (TextBlock("a"), TextBlock("b")))
    request = Request(
        model="m",
        turns=(Turn("user", (TextBlock("a"), result)), Turn("user", (TextBlock("b"),))),
        tools=(ToolSpec("f"),),
    )
    check_request(request, RequestLimits(max_tools=1, max_messages=2, max_blocks=5), "input")
    for limits, message in (
        (RequestLimits(max_tools=0), "tools: must have at most 0 tools, got 1"),
        (RequestLimits(max_messages=1), "input: must have at most 1 items, got 2"),
        (RequestLimits(max_blocks=4), "input: must have at most 4 content blocks, got 5"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            check_request(request, limits, "input")
        assert raised.value.message == message


@pytest.mark.parametrize(
    "block",
    [
        ToolCallBlock("c" * 70_000, "f", "{}"),
        ToolCallBlock("c", "f" * 70_000, "{}"),
        ToolResultBlock("c" * 70_000),
    ],
)
def test_long_names_and_ids(block: ToolCallBlock | ToolResultBlock) -> None:
    """They would otherwise be processed on the event loop, 6 MB for 6 seconds."""
    short = ToolCallBlock("c" * 60_000, "f", "{}")
    check_request(Request(model="m", turns=(Turn("assistant", (short,)),)), RequestLimits(), "x")
    request = Request(model="m", turns=(Turn("assistant", (block,)),))
    with pytest.raises(InvalidRequest, match=r"x\[0\]: must have at most 65536 characters in the"):
        check_request(request, RequestLimits(), "x")


def test_many_long_ids() -> None:
    block = ToolResultBlock("c" * 60_000)
    request = Request(model="m", turns=(Turn("tool", (block,) * 80),))
    with pytest.raises(
        InvalidRequest, match="x: must have at most 4194304 characters in the names"
    ):
        check_request(request, RequestLimits(), "x")


def test_tools_that_messages_define_are_limited_like_declared_ones() -> None:
    added = ToolReferenceBlock("g", None, ToolSpec("g", "d" * 200))
    turns = (Turn("user", (TextBlock("a"), ToolReferenceBlock("f"), added)),)
    request = Request(model="m", turns=turns, tools=(ToolSpec("f"),))
    check_request(request, RequestLimits(max_tools=2, max_tool_bytes=300), "messages")
    check_request(request, RequestLimits(max_tool_bytes=100), "messages", body_bytes=100)
    for limits, message in (
        (RequestLimits(max_tools=1), "messages: must have at most 1 tools, got 2"),
        (RequestLimits(max_tool_bytes=100), "messages[0]: must have at most 100 bytes, got 216"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            check_request(request, limits, "messages", body_bytes=101)
        assert raised.value.message == message


def test_large_tool_of_a_small_body() -> None:
    request = Request(model="m", turns=(), tools=(ToolSpec("f"), ToolSpec("g", "d" * 200)))
    with pytest.raises(InvalidRequest, match=r"tools\[1\]: must have at most 100 bytes, got 216"):
        check_request(request, RequestLimits(max_tool_bytes=100), "messages", body_bytes=101)
