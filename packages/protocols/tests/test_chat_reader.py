"""Decoding chat streams to events, Dovetail's own and other servers'."""

from typing import Any

import msgspec
import pytest
from generated_events import request_body, scripts
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Message,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    ResponseFields,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    Usage,
    fold,
)
from dovetail_protocols.chat import CODEC, ChatReader

CHAT = [transcript for transcript in transcripts() if transcript.api == "chat"]
EACH = pytest.mark.parametrize("transcript", CHAT, ids=lambda t: t.folder.name)


def read(stream: bytes, size: int = 0) -> list[Event]:
    reader = ChatReader()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)] if size else [stream]
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    return [event for event in events if not isinstance(event, ResponseFields)]


def carried(message: Message, *, usage: bool = True) -> Message:
    """Return the part of a message that a chat stream carries: adjacent spans of a kind join."""
    blocks: list[OutputBlock] = []
    for block in message.blocks:
        last = blocks[-1] if blocks else None
        if isinstance(block, TextBlock) and isinstance(last, TextBlock):
            blocks[-1] = TextBlock(last.text + block.text)
        elif isinstance(block, ReasoningBlock) and isinstance(last, ReasoningBlock):
            blocks[-1] = ReasoningBlock(last.text + block.text)
        elif isinstance(block, ReasoningBlock):
            blocks.append(ReasoningBlock(block.text))
        else:
            blocks.append(block)
    if message.failure and blocks and isinstance(blocks[-1], ToolCallBlock):
        # Only a dispatch frame shows that the last call was complete when the stream broke.
        blocks[-1] = msgspec.structs.replace(blocks[-1], complete=False)
    limits = ("context_window", "cancelled")
    return Message(
        blocks=tuple(blocks),
        finish="length" if message.finish in limits else message.finish,
        stop_sequence=message.stop_sequence,
        usage=message.usage if usage else Usage(),
        failure=message.failure,
    )


@EACH
def test_golden_streams_are_read_back(transcript: Transcript) -> None:
    usage = "stream_options" in msgspec.json.decode(transcript.body) and not transcript.failure()
    found = fold(read(transcript.stream()))
    expected = carried(transcript.message(), usage=usage)
    assert msgspec.structs.replace(found, logprobs=()) == expected
    assert found.logprobs == transcript.message().logprobs


@given(scripts(failing=True), st.integers(0, 9), st.booleans())
def test_any_stream_is_read_back_in_any_chunks(
    events: list[Event], size: int, dispatch: bool
) -> None:
    body = request_body(stream_options={"include_usage": True}, nvext={"dispatch": dispatch})
    stream = CODEC.stream(CODEC.decode(body, {}), CountingIds(), clock).encode(events)
    message = fold(events)
    found = fold(read(stream, size))
    assert carried(found) == carried(message, usage=message.failure is None)


def test_dispatch_frame_closes_a_call_before_the_next_event() -> None:
    dispatch = next(t for t in CHAT if t.folder.name == "dispatch")
    behind = dispatch.stream().split(b"event: tool_call_dispatch")[0]
    frame = b'event: tool_call_dispatch\ndata: {"choice_index":0}\n\n'
    reader = ChatReader()
    assert CallClose(0) not in reader.feed(behind)
    assert reader.feed(frame) == [CallClose(0)]


def chunk(delta: object = None, reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return b"data: " + msgspec.json.encode({"choices": [choice], **more}) + b"\n\n"


def fragment(index: int | None, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **more}]}


DONE = b"data: [DONE]\n\n"


class TestOtherServers:
    def test_usage_comes_with_the_finish(self) -> None:
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}
        assert read(chunk({"content": "a"}) + chunk({}, "stop", usage=usage) + DONE) == [
            TextDelta("a"),
            SpanEnd("text"),
            Usage(3, 1),
            Finish("stop"),
        ]

    def test_complete_call_in_one_chunk(self) -> None:
        whole = fragment(0, id="x", function={"name": "f", "arguments": "{}"})
        assert read(chunk(whole, "tool_calls") + DONE) == [
            CallOpen(0, "f", "x"),
            CallArgs(0, "{}"),
            CallClose(0),
            Finish("tool_calls"),
        ]

    def test_calls_with_index_zero_are_distinguished_by_id(self) -> None:
        calls = [fragment(0, id=id, function={"name": "f", "arguments": "{}"}) for id in "xy"]
        message = fold(read(b"".join(map(chunk, calls)) + chunk({}, "tool_calls") + DONE))
        assert [b.id for b in message.blocks if isinstance(b, ToolCallBlock)] == ["x", "y"]

    def test_repeated_id_starts_no_new_call(self) -> None:
        parts = [
            fragment(0, id="x", function={"name": "f", "arguments": "{"}),
            fragment(0, id="x", function={"name": "", "arguments": "}"}),
        ]
        message = fold(read(b"".join(map(chunk, parts)) + chunk({}, "tool_calls") + DONE))
        assert message.blocks == (ToolCallBlock("x", "f", "{}"),)

    def test_arguments_wait_for_the_name(self) -> None:
        parts = [
            fragment(0, id="x", function={"arguments": "{"}),
            fragment(0, function={"name": "f", "arguments": "}"}),
        ]
        assert read(b"".join(map(chunk, parts)))[:2] == [CallOpen(0, "f", "x"), CallArgs(0, "{}")]

    def test_call_without_a_name_is_reported(self) -> None:
        nameless = chunk(fragment(0, id="x", function={"arguments": "{}"}))
        assert read(nameless + chunk({}, "stop") + DONE) == [
            Diagnostic("nameless_call"),
            Finish("stop"),
        ]

    def test_arguments_after_the_end_of_a_call_are_reported(self) -> None:
        opened = chunk(fragment(0, id="x", function={"name": "f", "arguments": "{}"}))
        late = chunk(fragment(0, function={"arguments": " "}))
        events = read(opened + chunk({"content": "a"}) + late + chunk({}, "stop") + DONE)
        assert Diagnostic("late_arguments") in events
        assert fold(events).finish == "tool_calls"

    def test_calls_with_alternating_fragments(self) -> None:
        """No call closes before its arguments are complete: a client would run it without them."""
        began = [fragment(at, id=id, function={"name": id}) for at, id in enumerate("xyz")]
        pieces = [(0, '{"a"'), (1, "{"), (2, "{}"), (0, ": 1}"), (1, "}")]
        filled = [fragment(at, function={"arguments": text}) for at, text in pieces]
        stream = b"".join(map(chunk, [*began, *filled])) + chunk({}, "tool_calls") + DONE
        assert read(stream) == [
            CallOpen(0, "x", "x"),
            CallArgs(0, '{"a"'),
            CallArgs(0, ": 1}"),
            CallClose(0),
            CallOpen(1, "y", "y"),
            CallArgs(1, "{"),
            CallArgs(1, "}"),
            CallClose(1),
            CallOpen(2, "z", "z"),
            CallArgs(2, "{}"),
            CallClose(2),
            Finish("tool_calls"),
        ]

    def test_waiting_call_is_emitted_where_the_output_was_truncated(self) -> None:
        began = [fragment(at, id=id, function={"name": id}) for at, id in enumerate("xy")]
        stream = b"".join(map(chunk, began))
        emitted = [CallOpen(0, "x", "x"), CallClose(0), CallOpen(1, "y", "y")]
        assert read(stream + chunk({}, "length")) == [*emitted, Finish("length")]
        assert read(stream)[:-1] == emitted

    def test_stop_reason_with_calls_to_run(self) -> None:
        whole = fragment(0, id="x", function={"name": "f", "arguments": "{}"})
        assert read(chunk(whole) + chunk({}, "stop") + DONE)[-1] == Finish("tool_calls")

    def test_call_truncated_by_the_limit_stays_open(self) -> None:
        truncated = fragment(0, id="x", function={"name": "f", "arguments": "{"})
        events = read(chunk(truncated) + chunk({}, "length") + DONE)
        assert CallClose(0) not in events
        assert fold(events).finish == "length"

    def test_both_names_of_reasoning(self) -> None:
        stream = chunk({"reasoning": "a"}) + chunk({"reasoning_content": "b", "content": None})
        assert read(stream)[:2] == [ReasoningDelta("a"), ReasoningDelta("b")]

    def test_refusal_is_text(self) -> None:
        assert read(chunk({"refusal": "No."}) + chunk({}, "content_filter") + DONE) == [
            TextDelta("No."),
            SpanEnd("text"),
            Finish("refusal"),
        ]

    def test_calls_without_indices_are_distinguished_by_id(self) -> None:
        calls = [fragment(None, id=id, function={"name": "f", "arguments": "{}"}) for id in "xy"]
        message = fold(read(b"".join(map(chunk, calls)) + chunk({}, "tool_calls") + DONE))
        assert [b.id for b in message.blocks if isinstance(b, ToolCallBlock)] == ["x", "y"]

    def test_calls_without_indices_and_ids_are_distinguished_by_name(self) -> None:
        calls = [fragment(None, function={"name": name, "arguments": "{}"}) for name in "fg"]
        message = fold(read(b"".join(map(chunk, calls)) + chunk({}, "stop") + DONE))
        assert [b.name for b in message.blocks if isinstance(b, ToolCallBlock)] == ["f", "g"]

    def test_fragment_without_an_index_continues_the_call(self) -> None:
        parts = [
            fragment(0, id="x", function={"name": "f", "arguments": "{"}),
            fragment(None, function={"arguments": "}"}),
        ]
        message = fold(read(b"".join(map(chunk, parts)) + chunk({}, "tool_calls") + DONE))
        assert message.blocks == (ToolCallBlock("x", "f", "{}"),)

    def test_arguments_that_are_an_object(self) -> None:
        whole = fragment(0, id="x", function={"name": "f", "arguments": {"a": 1}})
        message = fold(read(chunk(whole) + chunk({}, "stop") + DONE))
        assert message.blocks == (ToolCallBlock("x", "f", '{"a":1}'),)

    def test_content_in_parts_with_reasoning(self) -> None:
        parts = [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "Hi."},
        ]
        assert read(chunk({"content": parts}) + chunk({}, "stop"))[:3] == [
            ReasoningDelta("Hm."),
            SpanEnd("reasoning"),
            TextDelta("Hi."),
        ]

    def test_empty_finish_reason_is_ignored(self) -> None:
        stream = chunk({"content": "a"}, "") + chunk({"content": "b"}, "length") + DONE
        message = fold(read(stream))
        assert (message.blocks, message.finish) == ((TextBlock("ab"),), "length")

    def test_usage_with_nulls(self) -> None:
        usage = {"prompt_tokens": 3, "completion_tokens": None}
        assert Usage(3) in read(chunk({}, "stop", usage=usage) + DONE)

    def test_response_that_is_not_streamed(self) -> None:
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "content": "Hi.", "reasoning": "Hm.", "tool_calls": [call]}
        response = {
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
        found = fold(ChatReader().whole(msgspec.json.encode(response)))
        assert [block.type for block in found.blocks] == ["reasoning", "text", "tool_call"]
        assert (found.finish, found.usage) == ("tool_calls", Usage(3, 1))
        assert isinstance(ChatReader().whole(b"<html>")[-1], Failure)

    def test_missing_done_at_the_end(self) -> None:
        assert read(chunk({}, "stop")) == [Finish("stop")]

    def test_interrupted_stream_fails(self) -> None:
        assert isinstance(read(chunk({"content": "a"}))[-1], Failure)

    def test_other_choices_are_ignored(self) -> None:
        other = b'data: {"choices": [{"index": 1, "delta": {"content": "b"}}]}\n\n'
        assert read(other + chunk({}, "stop")) == [Finish("stop")]
        reader = ChatReader(choice=1)
        assert reader.feed(other + chunk({"content": "a"})) == [TextDelta("b")]

    def test_invalid_chunk_is_reported(self) -> None:
        odd = b'data: {\n\ndata: []\n\ndata: {"choices": 5}\n\n: ping\n\nevent: ping\ndata:\n\n'
        assert read(odd + chunk({}, "stop")) == [Diagnostic("malformed_chunk")] * 3 + [
            Finish("stop")
        ]

    @pytest.mark.parametrize(
        "odd",
        [
            {"usage": {"prompt_tokens": 5, "prompt_tokens_details": 0}},
            {"usage": [3, 4]},
            {"choices": [{"index": "0", "delta": {"content": "a"}, "finish_reason": "stop"}]},
            {"choices": [{"logprobs": [], "delta": {"content": "a"}, "finish_reason": "stop"}]},
            {
                "choices": [
                    {
                        "logprobs": {"content": [{"token": "a", "logprob": None}]},
                        "delta": {"content": "a", "tool_calls": "none"},
                        "finish_reason": "stop",
                    }
                ]
            },
        ],
    )
    def test_invalid_field_does_not_drop_the_text(self, odd: dict[str, Any]) -> None:
        assert read(chunk({"content": "a"}, "stop", **odd) + DONE) == [
            Diagnostic("malformed_chunk"),
            TextDelta("a"),
            SpanEnd("text"),
            Finish("stop"),
        ]

    def test_null_delta(self) -> None:
        null = b'data: {"choices": [{"index": 0, "delta": null, "finish_reason": "stop"}]}\n\n'
        assert read(null) == [Finish("stop")]

    def test_nothing_follows_the_end(self) -> None:
        assert read(chunk({}, "stop") + DONE + chunk({"content": "a"})) == [Finish("stop")]


ERRORS: list[tuple[object, Failure]] = [
    ("It broke.", Failure("engine", "It broke.")),
    ({"message": "Full.", "code": "server_is_overloaded"}, Failure("overloaded", "Full.")),
    (
        {"message": "Bad.", "type": "invalid_request_error", "param": "n", "code": None},
        Failure("invalid_request", "Bad.", "n"),
    ),
    (
        {"message": "Bad.", "type": "BadRequestError", "code": 400},
        Failure("invalid_request", "Bad."),
    ),
    ({"message": "Slow down.", "code": 429}, Failure("rate_limited", "Slow down.")),
    ({"code": {"a": 1}, "message": 5}, Failure("engine", "The upstream server reported an error.")),
]


@pytest.mark.parametrize(("error", "failure"), ERRORS, ids=str)
def test_errors_of_other_servers(error: object, failure: Failure) -> None:
    frame = b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    assert read(frame + chunk({}, "stop") + DONE) == [failure]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "tool_calls", "index", "usage", "error"]), inner
        )
    ),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=4))
def test_reader_never_raises(chunks: list[Any]) -> None:
    stream = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in chunks)
    assert isinstance(read(stream)[-1], Finish | Failure)
