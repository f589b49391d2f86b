"""Decoding any JSON returns a request or raises a DovetailError."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import DovetailError, Finish, InvalidRequest
from dovetail_protocols.responses import CODEC
from dovetail_protocols.responses.input_items import ITEM_DECODERS
from dovetail_protocols.responses.wire import Body

NAMES = st.sampled_from([
    "type", "role", "content", "text", "id", "call_id", "name", "namespace", "arguments", "input",
    "output", "summary", "encrypted_content", "status", "tools", "function", "parameters", "format",
    "definition", "syntax", "mode", "image_url", "url", "file_data", "error", "action", "x",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from([*ITEM_DECODERS, "item_reference", "dream"])},
    optional={
        "role": st.sampled_from(["user", "assistant", "developer", "system", "tool"]) | JSON,
        "content": JSON,
        "name": st.text(max_size=3) | JSON,
        "call_id": st.text(max_size=3) | JSON,
        "summary": JSON,
        "arguments": JSON,
        "tools": JSON,
        "output": JSON,
        "action": JSON,
        "encrypted_content": st.text(max_size=9) | JSON,
    },
)
TOOL = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "web_search"])},
    optional={
        "name": st.text(max_size=3), "tools": JSON, "format": JSON, "function": JSON,
        "parameters": JSON, "description": JSON,
    },
)  # fmt: skip
REST = {name: JSON for name in Body.__struct_fields__ if name not in ("model", "input", "tools")}


@given(
    body=st.fixed_dictionaries(
        {"model": st.just("m"), "input": st.text() | st.lists(ITEM | JSON, max_size=4)},
        optional={"tools": st.lists(TOOL | JSON, max_size=4), **REST},
    )
    | JSON
)
def test_any_json_raises_only_dovetail_errors(body: Any) -> None:
    try:
        request = CODEC.decode(msgspec.json.encode(body), {})
    except DovetailError:
        return
    encoder = CODEC.stream(request, lambda prefix: prefix + "1", lambda: 0.0)
    assert encoder.encode([Finish("stop")])


@pytest.mark.parametrize("depth", [200, 500, 900, 990, 5000])
def test_body_nested_too_deeply_raises_a_dovetail_error(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    item = b'{"type": "function_call", "name": "f", "arguments": ' + deep + b"}"
    body = b'{"model": "m", "input": [' + item + b'], "metadata": ' + deep + b"}"
    with contextlib.suppress(InvalidRequest):
        CODEC.decode(body, {})


def test_namespaces_nested_too_deeply_raise_a_dovetail_error() -> None:
    tool = b'{"type": "function", "name": "f"}'
    for _ in range(480):
        tool = b'{"type": "namespace", "name": "n", "tools": [' + tool + b"]}"
    with pytest.raises(InvalidRequest):
        CODEC.decode(b'{"model": "m", "input": "x", "tools": [' + tool + b"]}", {})
