"""Decoding any body returns a request or raises a DovetailError."""

import contextlib
import random
from typing import Any

import msgspec
from golden_transcripts import CODECS, transcripts
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_model import DovetailError
from dovetail_protocols.messages import decode_count
from dovetail_protocols.messages.block_text import _TEXT_WRITERS
from dovetail_protocols.messages.content import _DECODERS
from dovetail_protocols.messages.wire import Request

CODEC = CODECS["messages"]
BODIES = [t.body for t in transcripts() if t.api == "messages"]
TYPES = st.sampled_from([*_DECODERS, *_TEXT_WRITERS, "mcp_tool_result", "odd", "auto", "enabled"])
NAMES = st.sampled_from(
    [
        "type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id",
        "content", "is_error", "source", "media_type", "url", "title", "context", "role",
        "input_schema", "tool_references", "tool_name", "file_id", "cache_control", "keep", "value",
    ]
)  # fmt: skip
FIELDS = st.sampled_from([field.name for field in msgspec.structs.fields(Request)])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | TYPES
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)
        | st.builds(lambda kind, rest: {**rest, "type": kind}, TYPES, st.dictionaries(NAMES, inner))
    ),
    max_leaves=12,
)


def decode(body: bytes) -> None:
    with contextlib.suppress(DovetailError):
        CODEC.decode(body, {})
    with contextlib.suppress(DovetailError):
        decode_count(body, {})


@settings(deadline=None)
@given(body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes(body: bytes) -> None:
    decode(body)


@settings(deadline=None)
@given(fields=st.dictionaries(FIELDS, JSON), content=JSON)
def test_any_fields(fields: dict[str, Any], content: object) -> None:
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": [content]}]
    decode(msgspec.json.encode({"model": "m", "messages": messages} | fields))


@settings(deadline=None)
@given(body=st.sampled_from(BODIES), seed=st.integers(), strange=st.lists(JSON, max_size=3))
def test_golden_request_with_arbitrary_insertions(
    body: bytes, seed: int, strange: list[Any]
) -> None:
    value = msgspec.json.decode(body)
    chance = random.Random(seed)
    for item in strange:
        place(value, item, chance)
    decode(msgspec.json.encode(value))


def place(value: Any, item: object, chance: random.Random) -> None:
    """Insert the item at a random position in the value."""
    while True:
        key = chance.choice(range(len(value)) if isinstance(value, list) else list(value))
        if not value[key] or not isinstance(value[key], dict | list) or chance.random() < 0.3:
            value[key] = item
            return
        value = value[key]
