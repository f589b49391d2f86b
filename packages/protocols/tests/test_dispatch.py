"""Dispatch frames of complete calls and finished reasoning."""

import msgspec

from dovetail_model import CallArgs, CallClose, CallOpen, Event, Hints, ReasoningDelta, SpanEnd
from dovetail_protocols import SseReader
from dovetail_protocols.dispatch import Dispatcher


def test_each_part_is_dispatched_once_when_complete() -> None:
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
    frames = SseReader().feed(b"".join(map(dispatcher.observe, events)))
    assert [(event.event, msgspec.json.decode(event.data)) for event in frames] == [
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


def test_dispatch_frames_are_sent_only_if_requested() -> None:
    dispatcher = Dispatcher(Hints())
    assert not dispatcher.active
    assert dispatcher.observe(CallOpen(0, "f")) + dispatcher.observe(CallClose(0)) == b""
