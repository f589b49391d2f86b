"""A stream of the Messages API is always a legal one, whatever events come.

`Checker` is the API's grammar as a state machine, written from its documentation and apart from
the encoder.
"""

from typing import Any

import msgspec
import pytest
from golden import CODECS, CountingIds, Transcript, clock, transcripts
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    FinishReason,
    Hints,
    Logprobs,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextDelta,
    Usage,
    fold,
)
from dovetail_protocols import ServerEvent, SseReader

CODEC = CODECS["messages"]
SIDE_CHANNEL = {"tool_call_dispatch", "reasoning_dispatch"}
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


class Checker:
    """Follows a stream and fails on the first event that may not stand where it stands."""

    def __init__(self) -> None:
        self.state = "before"
        self.content: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self.usage: dict[str, int] = {}

    def feed(self, event: ServerEvent) -> None:
        if event.event in SIDE_CHANNEL:
            assert self.state in ("message", "ended")
            return
        data = msgspec.json.decode(event.data)
        assert data["type"] == event.event
        getattr(self, f"on_{event.event}")(data)

    def on_message_start(self, data: dict[str, Any]) -> None:
        assert self.state == "before"
        message = data["message"]
        assert message["content"] == []
        assert message["stop_reason"] is None
        assert message["id"].startswith("msg_")
        self.usage = message["usage"]
        self.state = "message"

    def on_ping(self, data: dict[str, Any]) -> None:
        assert self.state == "message"

    def on_content_block_start(self, data: dict[str, Any]) -> None:
        assert self.state == "message"
        assert self.open is None, "the last block has not stopped"
        assert data["index"] == len(self.content), "indices are dense"
        self.open = {**data["content_block"], "pieces": [], "signatures": []}
        if self.open["type"] == "tool_use":
            assert self.open["input"] == {}

    def on_content_block_delta(self, data: dict[str, Any]) -> None:
        assert self.open is not None, "a delta belongs to an open block"
        assert data["index"] == len(self.content)
        delta = data["delta"]
        assert delta["type"] in DELTAS[self.open["type"]]
        assert not self.open["signatures"], "the signature comes once, and last"
        kind, value = delta.values()
        self.open["signatures" if kind == "signature_delta" else "pieces"].append(value)

    def on_content_block_stop(self, data: dict[str, Any]) -> None:
        assert self.open is not None, "a block stops once"
        assert data["index"] == len(self.content)
        block, self.open = self.open, None
        text = "".join(block.pop("pieces"))
        signatures = block.pop("signatures")
        if block["type"] == "text":
            assert text.strip(), "no blocks of white space"
            block["text"] = text
        elif block["type"] == "thinking":
            block |= {"thinking": text, "signature": "".join(signatures)}
        else:
            assert text == text.lstrip(), "SDKs cannot read white space as the first delta"
            block["input"] = text
        self.content.append(block)

    def on_message_delta(self, data: dict[str, Any]) -> None:
        assert self.state == "message"
        assert self.open is None
        self.stop_reason = data["delta"]["stop_reason"]
        assert self.stop_reason
        total = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(data["usage"][name] for name in total) >= 0
        self.state = "ended"

    def on_message_stop(self, data: dict[str, Any]) -> None:
        assert self.state == "ended"
        self.state = "over"

    def on_error(self, data: dict[str, Any]) -> None:
        assert self.state in ("before", "message")
        assert set(data["error"]) == {"type", "message"}
        self.state = "over"


def check(stream: bytes) -> Checker:
    checker = Checker()
    for event in SseReader().feed(stream):
        checker.feed(event)
    return checker


def encode(events: list[Event], request: Request | None = None) -> bytes:
    return CODEC.stream(request or Request("m"), CountingIds(), clock).encode(events)


GOLDEN = [transcript for transcript in transcripts() if transcript.api == "messages"]


@pytest.mark.parametrize("transcript", GOLDEN, ids=lambda t: t.id)
def test_golden_streams_are_legal(transcript: Transcript) -> None:
    assert check(transcript.stream()).state == "over"


# Any events in any order: nonsense included

TEXTS = st.text(max_size=6) | st.sampled_from(
    ["", " ", "\n\n", "a", " b", "\u2028", '"\\', "\ud800"]
)
INDICES = st.integers(0, 2)
REASONS: tuple[FinishReason, ...] = (
    "stop",
    "length",
    "tool_calls",
    "stop_sequence",
    "context_window",
    "refusal",
    "cancelled",
    "error",
)
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


def no_surrogates(events: list[Event]) -> bool:
    """The side channel is shared code, and takes text as UTF-8 can carry it."""
    return not any(
        "\ud800" in (e.name if isinstance(e, CallOpen) else getattr(e, "text", "")) for e in events
    )


@settings(max_examples=500, deadline=None)
@given(events=st.lists(EVENTS, max_size=25), hints=HINTS, pings=st.sets(st.integers(0, 25)))
def test_any_events_make_a_legal_stream(events: list[Event], hints: Hints, pings: set[int]) -> None:
    if not no_surrogates(events):
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


# Events as models make them: the stream and the whole answer say the same


@st.composite
def spans(draw: st.DrawFn) -> list[Event]:
    kind = draw(st.sampled_from(["text", "reasoning"]))
    make = TextDelta if kind == "text" else ReasoningDelta
    deltas: list[Event] = [make(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=4))]
    seal = draw(st.none() | st.sampled_from(["s1", "s2"])) if kind == "reasoning" else None
    return [*deltas, SpanEnd("text" if kind == "text" else "reasoning", seal=seal)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@st.composite
def calls(draw: st.DrawFn, index: int) -> list[Event]:
    """A call in pieces; often whole, sometimes cut anywhere."""
    custom = draw(st.booleans())
    if custom:
        text = draw(st.text(max_size=12))
    else:
        value = draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
        text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    at = draw(st.integers(0, len(text)))
    opened = CallOpen(index, "f", id=f"toolu_{index}", custom=custom)
    if draw(st.booleans()):
        return [opened, CallArgs(index, text[:at]), CallArgs(index, text[at:]), CallClose(index)]
    return [opened, CallArgs(index, text[: at // 2]), CallArgs(index, text[at // 2 : at])]


@st.composite
def scripts(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [Usage(40)]
    for index in range(draw(st.integers(0, 5))):
        events += draw(spans() | calls(index))
    reason = draw(st.sampled_from(REASONS[:-2]))
    return [*events, Usage(40, 9, 16, 3), Finish(reason)]


def whole(events: list[Event]) -> dict[str, Any]:
    answer = CODEC.encode_message(Request("m"), [fold(events)], CountingIds(), clock)
    decoded: dict[str, Any] = msgspec.json.decode(answer)
    return decoded


@settings(max_examples=300, deadline=None)
@given(events=scripts())
def test_the_stream_says_what_the_whole_answer_says(events: list[Event]) -> None:
    checker = check(encode(events))
    answer = whole(events)
    assert checker.stop_reason == answer["stop_reason"]
    cut = {e.index for e in events if isinstance(e, CallOpen)} - {
        e.index for e in events if isinstance(e, CallClose)
    }
    shown: list[dict[str, Any]] = []
    for block in checker.content:
        if block["type"] == "tool_use" and block["id"] not in {f"toolu_{at}" for at in cut}:
            block["input"] = msgspec.json.decode(block["input"] or "{}")
        shown.append(block)
    for streamed, told in zip(shown, answer["content"], strict=True):
        if isinstance(streamed.get("input"), str):  # cut: the SDK tests say what it means
            assert streamed["input"], "a cut call does not look complete"
            streamed["input"] = told["input"]
        assert streamed == told


# What the client's own rules ask for, one by one


def test_leading_white_space_waits_for_content() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    assert b"content_block" not in encoder.encode([Usage(1), TextDelta("\n"), TextDelta(" ")])
    content = check(encode([TextDelta("\n"), TextDelta(" a"), TextDelta(" "), Finish("stop")]))
    assert content.content == [{"type": "text", "text": "\n a "}]


def test_white_space_between_a_thought_and_a_call_is_not_sent() -> None:
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


def test_white_space_inside_a_call_does_not_cut_it() -> None:
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


def test_a_block_stops_with_the_event_that_ends_it() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    encoder.encode([Usage(1), CallOpen(0, "f", id="toolu_1"), CallArgs(0, "{}")])
    assert b"content_block_stop" in encoder.encode([CallClose(0)])


def test_a_cut_call_without_arguments_does_not_look_complete() -> None:
    cut = check(encode([CallOpen(0, "f", id="toolu_1"), Finish("length")]))
    assert cut.content[0]["input"] == "{"
    empty = check(encode([CallOpen(0, "f", id="toolu_1"), CallClose(0), Finish("tool_calls")]))
    assert empty.content[0]["input"] == ""


def test_arguments_do_not_begin_with_white_space() -> None:
    events: list[Event] = [CallOpen(0, "f", id="toolu_1"), CallArgs(0, "\n"), CallArgs(0, " {}")]
    assert check(encode([*events, CallClose(0), Finish("stop")])).content[0]["input"] == "{}"


def test_an_empty_seal_is_no_signature() -> None:
    assert b"signature_delta" not in encode([ReasoningDelta("t"), SpanEnd("reasoning", seal="")])


def test_an_empty_thought_is_a_sign_of_life() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    encoder.encode([Usage(1), ReasoningDelta("")])
    assert b'"thinking_delta","thinking":""' in encoder.encode([ReasoningDelta("")])


def test_a_ping_waits_for_the_message_to_start() -> None:
    encoder = CODEC.stream(Request("m"), CountingIds(), clock)
    assert encoder.keep_alive() == b""
    encoder.encode([Usage(1)])
    assert encoder.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_failure_before_anything_is_an_error_alone() -> None:
    assert [e.event for e in SseReader().feed(encode([Failure("engine", "x")]))] == ["error"]


@pytest.mark.parametrize("last", [Failure("engine", "x"), Finish("error"), Finish("cancelled")])
def test_a_failure_leaves_the_open_block_open(last: Event) -> None:
    names = [e.event for e in SseReader().feed(encode([CallOpen(0, "f", id="toolu_1"), last]))]
    assert names == ["message_start", "content_block_start", "error"]


def test_a_call_without_an_outward_id_gets_one() -> None:
    events: list[Event] = [CallOpen(0, "f"), CallClose(0), Finish("tool_calls")]
    assert check(encode(events)).content[0]["id"] == "toolu_0002"


def test_the_model_is_echoed_to_the_byte() -> None:
    name = 'claude-"odd"/é'
    stream = encode([Usage(1)], Request(name))
    (started,) = SseReader().feed(stream)
    assert msgspec.json.decode(started.data)["message"]["model"] == name
