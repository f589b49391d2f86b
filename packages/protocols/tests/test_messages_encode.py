"""A Messages stream is always valid, for any events.

`Checker` is the API's grammar as a state machine, written from its documentation and independent of
the encoder.
"""

from typing import Any

import msgspec
import pytest
from golden_transcripts import CODECS, CountingIds, Transcript, clock, transcripts
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_streams import INDICES, REASONS, TEXTS, check, message_events, without_surrogates

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Hints,
    Logprobs,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextDelta,
    Usage,
    fold,
)
from dovetail_protocols import SseReader

CODEC = CODECS["messages"]


def encode(events: list[Event], request: Request | None = None) -> bytes:
    return CODEC.stream(request or Request("m"), CountingIds(), clock).encode(events)


GOLDEN = [transcript for transcript in transcripts() if transcript.api == "messages"]


@pytest.mark.parametrize("transcript", GOLDEN, ids=lambda t: t.id)
def test_golden_streams_are_valid(transcript: Transcript) -> None:
    assert check(transcript.stream()).state == "over"


# Arbitrary events in any order

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(TextDelta, TEXTS),
    st.builds(ReasoningDelta, TEXTS),
    st.builds(
        SpanEnd,
        st.sampled_from(["text", "reasoning", "frame"]),
        seal=st.none() | st.sampled_from(["", "s1", "s2"]),
    ),
    st.builds(
        CallOpen,
        INDICES,
        TEXTS,
        id=st.none() | st.just("toolu_x"),
        custom=st.booleans(),
    ),
    st.builds(CallArgs, INDICES, TEXTS),
    st.builds(CallClose, INDICES),
    st.builds(Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    st.just(Logprobs(())),
    st.just(Diagnostic("x")),
    st.builds(Finish, st.sampled_from(REASONS)),
    st.builds(Failure, st.sampled_from(["overloaded", "engine", "new"]), TEXTS.filter(str.isascii)),
)
HINTS = st.sampled_from([Hints(), Hints(dispatch=frozenset({"tools", "reasoning"}))])


@settings(max_examples=500, deadline=None)
@given(events=st.lists(EVENTS, max_size=25), hints=HINTS, pings=st.sets(st.integers(0, 25)))
def test_any_events_yield_a_valid_stream(
    events: list[Event], hints: Hints, pings: set[int]
) -> None:
    if not without_surrogates(events):
        hints = Hints()
    encoder = CODEC.stream(Request("m", hints=hints), CountingIds(), clock)
    stream = b""
    for at, event in enumerate(events):
        stream += encoder.encode([event])
        if at in pings:
            stream += encoder.keep_alive()
    checker = check(stream)
    ended = any(isinstance(event, Finish | Failure) for event in events)
    assert (checker.state == "over") == ended
    assert encoder.encode([TextDelta("late"), Finish("stop")], choice=1) == b""
    if ended:
        assert encoder.encode([TextDelta("late"), Finish("stop")]) == b""
        assert encoder.keep_alive() == b""


# Events as models generate them: stream and non-streaming response are equal


def whole(events: list[Event]) -> dict[str, Any]:
    body = CODEC.encode_message(Request("m"), [fold(events)], CountingIds(), clock)
    decoded: dict[str, Any] = msgspec.json.decode(body)
    return decoded


@settings(max_examples=300, deadline=None)
@given(events=message_events())
def test_stream_equals_the_non_streaming_message(events: list[Event]) -> None:
    checker = check(encode(events))
    message = whole(events)
    assert checker.stop_reason == message["stop_reason"]
    truncated = {e.index for e in events if isinstance(e, CallOpen)} - {
        e.index for e in events if isinstance(e, CallClose)
    }
    shown: list[dict[str, Any]] = []
    for block in checker.content:
        if block["type"] == "tool_use" and block["id"] not in {f"toolu_{at}" for at in truncated}:
            block["input"] = msgspec.json.decode(block["input"] or "{}")
        shown.append(block)
    for streamed, expected in zip(shown, message["content"], strict=True):
        if isinstance(streamed.get("input"), str):  # truncated: the SDK tests cover its meaning
            assert streamed["input"], "a truncated call does not look complete"
            streamed["input"] = expected["input"]
        assert streamed == expected


# Rules of the clients


def test_leading_white_space_waits_for_content() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    assert b"content_block" not in encoder.encode([Usage(1), TextDelta("\n"), TextDelta(" ")])
    content = check(encode([TextDelta("\n"), TextDelta(" a"), TextDelta(" "), Finish("stop")]))
    assert content.content == [{"type": "text", "text": "\n a "}]


def test_white_space_between_reasoning_and_a_call_is_not_sent() -> None:
    events: list[Event] = [
        ReasoningDelta("t"),
        SpanEnd("reasoning", seal="s"),
        TextDelta("\n\n"),
        SpanEnd("text"),
        CallOpen(0, "f", id="toolu_1"),
        CallClose(0),
        TextDelta("\n"),
        Finish("tool_calls"),
    ]
    assert [block["type"] for block in check(encode(events)).content] == ["thinking", "tool_use"]


def test_white_space_inside_a_call_does_not_end_it() -> None:
    events: list[Event] = [
        CallOpen(0, "f", id="toolu_1"),
        CallArgs(0, "{"),
        TextDelta("\n"),
        CallArgs(0, "}"),
        CallClose(0),
        TextDelta("a"),
        Finish("tool_calls"),
    ]
    used, text = check(encode(events)).content
    assert used["input"] == "{}"
    assert text["text"] == "a"


def test_block_stops_with_the_event_that_ends_it() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    encoder.encode([Usage(1), CallOpen(0, "f", id="toolu_1"), CallArgs(0, "{}")])
    assert b"content_block_stop" in encoder.encode([CallClose(0)])


def test_truncated_call_without_arguments_does_not_look_complete() -> None:
    truncated = check(encode([CallOpen(0, "f", id="toolu_1"), Finish("length")]))
    assert truncated.content[0]["input"] == "{"
    empty = check(encode([CallOpen(0, "f", id="toolu_1"), CallClose(0), Finish("tool_calls")]))
    assert empty.content[0]["input"] == ""


def test_arguments_do_not_start_with_white_space() -> None:
    events: list[Event] = [CallOpen(0, "f", id="toolu_1"), CallArgs(0, "\n"), CallArgs(0, " {}")]
    assert check(encode([*events, CallClose(0), Finish("stop")])).content[0]["input"] == "{}"


def test_empty_seal_yields_no_signature() -> None:
    assert b"signature_delta" not in encode([ReasoningDelta("t"), SpanEnd("reasoning", seal="")])


def test_empty_reasoning_keeps_the_stream_alive() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    encoder.encode([Usage(1), ReasoningDelta("")])
    assert b'"thinking_delta","thinking":""' in encoder.encode([ReasoningDelta("")])


def test_no_ping_before_the_message_starts() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    assert encoder.keep_alive() == b""
    encoder.encode([Usage(1)])
    assert encoder.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_failure_before_the_first_event_is_only_an_error() -> None:
    assert [e.event for e in SseReader().feed(encode([Failure("engine", "x")]))] == ["error"]


@pytest.mark.parametrize("last", [Failure("engine", "x"), Finish("error"), Finish("cancelled")])
def test_failure_does_not_stop_the_open_block(last: Event) -> None:
    names = [e.event for e in SseReader().feed(encode([CallOpen(0, "f", id="toolu_1"), last]))]
    assert names == ["message_start", "content_block_start", "error"]


def test_call_without_a_public_id_gets_one() -> None:
    events: list[Event] = [CallOpen(0, "f"), CallClose(0), Finish("tool_calls")]
    assert check(encode(events)).content[0]["id"] == "toolu_0002"


def test_model_name_is_echoed_unchanged() -> None:
    name = 'claude-"odd"/é'
    stream = encode([Usage(1)], Request(name))
    (started,) = SseReader().feed(stream)
    assert msgspec.json.decode(started.data)["message"]["model"] == name
