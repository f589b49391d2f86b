"""The sequence of chunks, checked by a state machine."""

from typing import Any

import msgspec
import pytest
from generated_events import request_body, scripts
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    CallClose,
    CallOpen,
    Event,
    Failure,
    Finish,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    Usage,
    fold,
)
from dovetail_protocols import ServerEvent, SseReader
from dovetail_protocols.chat import CODEC, ChatCodec

CHAT = [transcript for transcript in transcripts() if transcript.api == "chat"]
EACH = pytest.mark.parametrize("transcript", CHAT, ids=lambda t: t.folder.name)
STREAM_OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}
OUTPUT_FIELDS = ("content", "reasoning_content", "tool_calls")


class Sequence:
    """Checks one stream: roles first, then output, one finish per choice, then the end."""

    def __init__(self, n: int, *, include_usage: bool) -> None:
        self.choices = [ChoiceSequence() for _ in range(n)]
        self.head: Any = None
        self.include_usage = include_usage
        self.end = ""

    def follow(self, event: ServerEvent) -> None:
        assert self.end in ("", "usage"), "nothing follows the end"
        if event.data == "[DONE]":
            assert all(choice.finished for choice in self.choices)
            assert (self.end == "usage") == self.include_usage
            self.end = "done"
            return
        data = msgspec.json.decode(event.data)
        if event.event:
            self.follow_dispatch(event.event, data)
        elif "error" in data:
            assert set(data["error"]) == {"message", "type", "param", "code"}
            self.end = "error"
        else:
            self.follow_chunk(data)

    def follow_chunk(self, chunk: Any) -> None:
        head = {key: chunk[key] for key in ("id", "object", "created", "model")}
        assert self.head in (None, head), "the head never changes"
        self.head = head
        assert head["object"] == "chat.completion.chunk"
        if not chunk["choices"]:
            assert self.include_usage
            assert all(choice.finished for choice in self.choices)
            assert chunk["usage"]["total_tokens"] == (
                chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]
            )
            self.end = "usage"
            return
        assert "usage" not in chunk
        [choice] = chunk["choices"]
        earlier = self.choices[: choice["index"]]
        assert all(each.begun for each in earlier), "roles come in order"
        if "role" not in choice["delta"]:
            assert all(each.begun for each in self.choices), "roles come first"
        self.choices[choice["index"]].follow(choice)

    def follow_dispatch(self, name: str, data: Any) -> None:
        if name == "tool_call_dispatch":
            choice = self.choices[data["choice_index"]]
            assert data["tool_call"]["index"] == choice.calls - 1, "directly after its call"
            assert data["tool_call"]["index"] not in choice.dispatched, "never twice"
            choice.dispatched.append(data["tool_call"]["index"])
        else:
            assert name == "reasoning_dispatch"


class ChoiceSequence:
    """Checks one choice of it."""

    def __init__(self) -> None:
        self.begun = False
        self.finished = False
        self.calls = 0
        self.dispatched: list[int] = []

    def follow(self, choice: Any) -> None:
        assert not self.finished, "nothing follows a finish"
        delta, reason = choice["delta"], choice["finish_reason"]
        assert {"index", "delta", "logprobs", "finish_reason"} <= set(choice)
        if not self.begun:
            assert delta == {"role": "assistant", "content": ""}
            assert reason is None
            self.begun = True
        elif reason is not None:
            assert reason in ("stop", "length", "tool_calls", "content_filter")
            assert set(delta) <= {"reasoning_segments"}
            assert len(delta.get("reasoning_segments", [""] * (self.calls + 1))) == self.calls + 1
            self.finished = True
        else:
            [kind] = delta
            assert kind in OUTPUT_FIELDS
            if kind == "tool_calls":
                [fragment] = delta["tool_calls"]
                self.follow_call(fragment)

    def follow_call(self, fragment: Any) -> None:
        index = fragment.pop("index")
        if "id" in fragment:
            assert index == self.calls, "indices are dense"
            assert set(fragment) == {"id", "type", fragment["type"]}
            assert fragment["type"] in ("function", "custom")
            assert fragment[fragment["type"]]["name"]
            self.calls += 1
        else:
            assert index == self.calls - 1, "only the last call grows"
            [(kind, inner)] = fragment.items()
            assert set(inner) == {"input" if kind == "custom" else "arguments"}


def check(stream: bytes, n: int = 1, *, include_usage: bool = True) -> Sequence:
    sequence = Sequence(n, include_usage=include_usage)
    for event in SseReader().feed(stream):
        sequence.follow(event)
    return sequence


@EACH
def test_golden_sequences(transcript: Transcript) -> None:
    body = msgspec.json.decode(transcript.body)
    sequence = check(transcript.stream(), include_usage="stream_options" in body)
    assert sequence.end == ("error" if transcript.failure() else "done")


@given(scripts(failing=True), st.booleans(), st.booleans(), st.booleans())
def test_any_events_yield_a_valid_sequence(
    events: list[Event], usage: bool, dispatch: bool, segments: bool
) -> None:
    extra = ["reasoning_segments"] if segments else []
    body = request_body(
        stream=True,
        stream_options={"include_usage": usage},
        logprobs=True,
        nvext={"dispatch": dispatch, "extra_fields": extra},
    )
    encoder = CODEC.stream(CODEC.decode(body, {}), CountingIds(), clock)
    stream = b"".join(encoder.encode([event]) for event in events)
    sequence = check(stream, include_usage=usage)
    failed = isinstance(events[-1], Failure)
    assert sequence.end == ("error" if failed else "done")
    complete = [event.index for event in events if isinstance(event, CallClose)]
    assert sequence.choices[0].dispatched == (complete if dispatch else [])
    assert encoder.encode(events) == b"", "nothing follows the end"


@given(scripts(), scripts(), st.lists(st.integers(0, 1), max_size=30))
def test_two_choices_in_one_stream(
    first: list[Event], second: list[Event], order: list[int]
) -> None:
    request = CODEC.decode(request_body(n=2, **STREAM_OPTIONS), {})
    encoder = CODEC.stream(request, CountingIds(), clock)
    queues = [list(first), list(second)]
    out = [encoder.encode([queues[at].pop(0)], at) for at in order if queues[at]]
    out += [encoder.encode(queue, at) for at, queue in enumerate(queues)]
    stream = b"".join(out)
    assert check(stream, 2).end == "done"

    messages = [fold(first), fold(second)]
    whole = msgspec.json.decode(CODEC.encode_message(request, messages, CountingIds(), clock))
    usage = msgspec.json.decode(SseReader().feed(stream)[-2].data)["usage"]
    assert whole["usage"] == usage
    assert usage["prompt_tokens"] == 7, "one prompt, counted once"
    assert usage["completion_tokens"] == sum(m.usage.output_tokens for m in messages)


def test_failure_of_one_choice_ends_all_choices() -> None:
    request = CODEC.decode(request_body(n=2, **STREAM_OPTIONS), {})
    encoder = CODEC.stream(request, CountingIds(), clock)
    stream = encoder.encode([TextDelta("a")], 1) + encoder.encode([Failure("engine", "x")], 0)
    assert check(stream, 2).end == "error"
    assert encoder.encode([TextDelta("b"), Finish("stop")], 1) == b""


def test_finished_choice_sends_nothing_more() -> None:
    encoder = CODEC.stream(CODEC.decode(request_body(n=2), {}), CountingIds(), clock)
    assert encoder.encode([Finish("stop"), TextDelta("a")]).endswith(
        b'"finish_reason":"stop"}]}\n\n'
    )
    assert encoder.encode([Finish("stop")], 1).endswith(b"data: [DONE]\n\n")


def test_no_events_yield_no_bytes() -> None:
    encoder = CODEC.stream(CODEC.decode(request_body(), {}), CountingIds(), clock)
    assert encoder.encode([]) == b""


def test_keep_alive_is_a_comment() -> None:
    encoder = CODEC.stream(CODEC.decode(request_body(), {}), CountingIds(), clock)
    assert encoder.keep_alive().startswith(b":")
    assert SseReader().feed(encoder.keep_alive()) == []


def test_reasoning_in_the_alternative_field() -> None:
    codec = ChatCodec(reasoning_field="reasoning")
    request = codec.decode(request_body(stream=True), {})
    events: list[Event] = [Usage(), ReasoningDelta("r"), SpanEnd("reasoning"), Finish("stop")]
    stream = codec.stream(request, CountingIds(), clock).encode(events)
    assert b'"delta":{"reasoning":"r"}' in stream
    whole = codec.encode_message(request, [fold(events)], CountingIds(), clock)
    message = msgspec.json.decode(whole)["choices"][0]["message"]
    assert message["reasoning"] == "r"
    assert "reasoning_content" not in message


def test_logprobs_are_sent_only_if_requested() -> None:
    logprobs = next(t for t in CHAT if t.folder.name == "logprobs")
    request = CODEC.decode(request_body(stream=True), {})
    stream = CODEC.stream(request, CountingIds(), clock).encode(logprobs.events())
    assert b'"token"' not in stream
    whole = CODEC.encode_message(request, [logprobs.message()], CountingIds(), clock)
    assert b'"token"' not in whole


def test_call_without_an_id_gets_the_same_id_as_in_the_fold() -> None:
    request = CODEC.decode(request_body(stream=True), {})
    events: list[Event] = [CallOpen(0, "f"), CallClose(0), Finish("tool_calls")]
    stream = CODEC.stream(request, CountingIds(), clock).encode(events)
    whole = CODEC.encode_message(request, [fold(events)], CountingIds(), clock)
    assert b'"id":"call_0"' in stream
    assert b'"id":"call_0"' in whole
