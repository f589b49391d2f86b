"""A broken response never looks complete, in any API, streaming or not."""

import msgspec
import pytest
from golden_transcripts import CountingIds, clock

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    ContextOverflow,
    DovetailError,
    Event,
    Failure,
    Finish,
    Hints,
    Overloaded,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextDelta,
    Usage,
    fold,
)
from dovetail_protocols import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Codec, SseReader
from dovetail_protocols.dispatch import Dispatcher
from dovetail_protocols.hints import read_nvext
from dovetail_protocols.identity import read_identity

CODECS = {"messages": MESSAGES, "responses": RESPONSES, "chat": CHAT, "completions": COMPLETIONS}
EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
BODIES: dict[str, bytes] = {
    "messages": b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}]}',
    "responses": b'{"model":"m","input":"a"}',
    "chat": b'{"model":"m","messages":[{"role":"user","content":"a"}]}',
    "completions": b'{"model":"m","prompt":"a"}',
}
CLEAN_ENDS = ("message_stop", "[DONE]", "response.completed", "response.incomplete")


def request(codec: Codec) -> Request:
    return codec.decode(BODIES[codec.name], {})


@EACH
@pytest.mark.parametrize("end", [Finish("cancelled"), Finish("error"), Failure("engine", "gone")])
def test_broken_stream_has_no_clean_end(codec: Codec, end: Event) -> None:
    events: list[Event] = [Usage(3), TextDelta("half"), end]
    stream = codec.stream(request(codec), CountingIds(), clock).encode(events).decode()
    assert not [mark for mark in CLEAN_ENDS if mark in stream]
    assert "error" in stream.split("data:")[-1]


@pytest.mark.parametrize("codec", [MESSAGES, CHAT, COMPLETIONS], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", [ContextOverflow, Overloaded])
def test_broken_message_raises_its_error(codec: Codec, kind: type[DovetailError]) -> None:
    message = fold([Usage(3), TextDelta("half"), kind("no").to_failure()])
    with pytest.raises(kind):
        codec.encode_message(request(codec), [message], CountingIds(), clock)


@EACH
def test_lone_surrogate_does_not_break_the_stream(codec: Codec) -> None:
    events: list[Event] = [
        Usage(3),
        ReasoningDelta("a\ud83d"),
        SpanEnd("reasoning"),
        TextDelta("b\ud83d"),
        SpanEnd("text"),
        CallOpen(0, "f", id="call_1"),
        CallArgs(0, "c\ud83d"),
        CallClose(0),
        Finish("stop"),
    ]
    stream = codec.stream(request(codec), CountingIds(), clock).encode(events)
    for event in SseReader().feed(stream):
        if event.data != "[DONE]":
            msgspec.json.decode(event.data)


@pytest.mark.parametrize("value", ["²", "--5", "9" * 5000, "", " ", "1.5"])
def test_non_numeric_hint_is_ignored(value: str) -> None:
    headers = {"x-dynamo-request-priority": value}
    assert read_nvext({"agent_hints": {"osl": value}}, headers).hints == Hints()


@pytest.mark.parametrize("value", [-1, "-5", -(10**30)])
def test_negative_number_of_tokens_is_ignored(value: object) -> None:
    found = read_nvext({"agent_hints": {"osl": value}, "max_thinking_tokens": value}, {})
    assert found.hints == Hints()
    assert found.max_thinking_tokens is None


def test_huge_hint_is_ignored() -> None:
    hints = read_nvext({"agent_hints": {"latency_sensitivity": 10**400}}, {}).hints
    assert hints.latency_sensitivity is None


@pytest.mark.parametrize("value", ["[" * 50_000, "\ud83d", "{", "[]"])
def test_invalid_metadata_is_ignored(value: str) -> None:
    assert (
        read_identity({"x-codex-turn-metadata": value, "thread-id": "t", "session-id": "s"}).session
        == "t"
    )


def test_two_open_calls_are_dispatched_separately() -> None:
    events: list[Event] = [
        CallOpen(0, "f", id="a"),
        CallOpen(1, "g", id="b"),
        CallArgs(0, "{0}"),
        CallArgs(1, "{1}"),
        CallClose(0),
        CallClose(1),
    ]
    dispatcher = Dispatcher(Hints(dispatch=frozenset({"tools"})))
    frames = [
        msgspec.json.decode(event.data)["tool_call"]
        for event in SseReader().feed(b"".join(map(dispatcher.observe, events)))
    ]
    assert [(call["id"], call["function"]["arguments"]) for call in frames] == [
        ("a", "{0}"),
        ("b", "{1}"),
    ]
