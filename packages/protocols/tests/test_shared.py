"""What all codecs share: frames, identity, hints, dispatch, faults with their paths."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    Hints,
    Identity,
    InvalidRequest,
    ReasoningDelta,
    SpanEnd,
)
from dovetail_protocols import ServerEvent, SseReader
from dovetail_protocols import request_body as wire
from dovetail_protocols.dispatch import Dispatcher
from dovetail_protocols.hints import read_nvext
from dovetail_protocols.identity import read_identity
from dovetail_protocols.sse import comment, frame


@given(
    events=st.lists(st.tuples(st.sampled_from(["", "a.b"]), st.text(max_size=9)), max_size=5),
    size=st.integers(1, 9),
)
def test_frames_are_read_back_in_any_pieces(events: list[tuple[str, str]], size: int) -> None:
    data = [msgspec.json.encode(text) for _, text in events]
    stream = comment("hello") + b"".join(
        frame(piece, name.encode()) for (name, _), piece in zip(events, data, strict=True)
    )
    reader = SseReader()
    found = [e for at in range(0, len(stream), size) for e in reader.feed(stream[at : at + size])]
    assert found == [
        ServerEvent(name, piece.decode()) for (name, _), piece in zip(events, data, strict=True)
    ]


IDENTITIES = [
    ("nobody", {}, Identity()),
    (
        "claude_code",
        {"x-claude-code-session-id": "s"},
        Identity(session="s"),
    ),
    (
        "claude_code_subagent",
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
        Identity(session="s", parent="s", agent="a"),
    ),
    (
        "claude_code_nested_subagent",
        {
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "b",
            "x-claude-code-parent-agent-id": "a",
        },
        Identity(session="s", parent="a", agent="b"),
    ),
    (
        "codex_subagent",
        {"thread-id": "t", "x-codex-parent-thread-id": "p", "x-openai-subagent": "review"},
        Identity(session="t", parent="p", agent="review"),
    ),
    (
        "codex_compaction",
        {"session-id": "s", "x-codex-turn-metadata": '{"request_kind": "compaction"}'},
        Identity(session="s", compaction=True),
    ),
    ("codex_broken_metadata", {"x-codex-turn-metadata": "{"}, Identity()),
    ("opencode", {"x-session-id": "s", "x-parent-session-id": "p"}, Identity("", "s", "p")),
    ("pi", {"session_id": "s"}, Identity(session="s")),
    (
        "dynamo",
        {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true", "x-session-id": "other"},
        Identity(session="s", final=True),
    ),
]


@pytest.mark.parametrize(
    ("headers", "expected"), [row[1:] for row in IDENTITIES], ids=[row[0] for row in IDENTITIES]
)
def test_identity(headers: dict[str, str], expected: Identity) -> None:
    assert read_identity(headers) == expected


def test_the_body_names_the_session_where_the_headers_are_silent() -> None:
    assert read_identity({}, session="b", user="u") == Identity(session="b", user="u")
    assert read_identity({"thread-id": "t"}, session="b").session == "t"


def test_hints() -> None:
    found = read_nvext(
        {
            "agent_hints": {
                "priority": 3,
                "osl": 100,
                "latency_sensitivity": 0.5,
                "speculative_prefill": True,
                "mood": "good",
            },
            "cache_salt": "x",
            "max_thinking_tokens": 50,
            "extra_fields": ["reasoning_segments", 4],
            "annotations": ["a"],
            "surprise": 1,
        },
        {"x-dynamo-request-strict-priority": "7"},
    )
    assert found.hints == Hints(3, 7, 100, 0.5, True, "x")
    assert found.extra_fields == {"reasoning_segments"}
    assert found.max_thinking_tokens == 50
    assert found.ignored == ("nvext.surprise", "nvext.agent_hints.mood")


DISPATCHES: list[tuple[object, dict[str, str], set[str]]] = [
    (None, {}, set()),
    (["tools"], {}, {"tools"}),
    (True, {}, {"tools", "reasoning"}),
    ("reasoning", {}, {"reasoning"}),
    (["tools"], {"x-dovetail-dispatch": "reasoning"}, {"reasoning"}),
    (None, {"x-dovetail-dispatch": "tools, Reasoning, sounds"}, {"tools", "reasoning"}),
    (5, {}, set()),
]


@pytest.mark.parametrize(("field", "headers", "expected"), DISPATCHES)
def test_who_asks_for_dispatch(field: object, headers: dict[str, str], expected: set[str]) -> None:
    assert read_nvext({"dispatch": field}, headers).hints.dispatch == expected


def test_dispatch_tells_each_thing_once_when_it_is_complete() -> None:
    events: list[Event] = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        SpanEnd("reasoning"),
        CallOpen(0, "f", id="call_1", namespace="n"),
        CallArgs(0, '{"a"'),
        CallArgs(0, ": 1}"),
        CallClose(0),
        SpanEnd("frame"),
        CallOpen(1, "patch", id="call_2", custom=True),
        CallArgs(1, "***"),
        CallClose(1),
        CallOpen(2, "cut", id="call_3"),
    ]
    dispatcher = Dispatcher(Hints(dispatch=frozenset({"tools", "reasoning"})))
    told = SseReader().feed(b"".join(map(dispatcher.observe, events)))
    assert [(event.event, msgspec.json.decode(event.data)) for event in told] == [
        ("reasoning_dispatch", {"choice_index": 0, "index": 0, "reasoning_content": "ab"}),
        (
            "tool_call_dispatch",
            {
                "choice_index": 0,
                "tool_call": {
                    "index": 0,
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "f", "namespace": "n", "arguments": '{"a": 1}'},
                },
            },
        ),
        (
            "tool_call_dispatch",
            {
                "choice_index": 0,
                "tool_call": {
                    "index": 1,
                    "id": "call_2",
                    "type": "custom",
                    "custom": {"name": "patch", "input": "***"},
                },
            },
        ),
    ]


def test_dispatch_is_silent_when_nobody_asked() -> None:
    dispatcher = Dispatcher(Hints())
    assert not dispatcher.active
    assert dispatcher.observe(CallOpen(0, "f")) + dispatcher.observe(CallClose(0)) == b""


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
def test_a_fault_names_its_field(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.convert(wire.RequestBody(body).fields, _Outer)
    assert caught.value.param == param


def test_unknown_fields_are_named() -> None:
    assert wire.unknown_fields({"items": [], "x": 1}, _Outer, "body.") == ("body.x",)
