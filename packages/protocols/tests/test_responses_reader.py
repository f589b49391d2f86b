"""Decoding Responses streams to events, Dovetail's own and other servers'."""

from typing import Any

import msgspec
import pytest
from generated_events import scripts
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
    Logprobs,
    Message,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    ResponseFields,
    SpanEnd,
    TextBlock,
    TextDelta,
    TokenLogprob,
    ToolCallBlock,
    Usage,
    fold,
)
from dovetail_protocols import ResponsesReader
from dovetail_protocols.responses import CODEC

GOLDEN = [transcript for transcript in transcripts() if transcript.api == "responses"]
EACH = pytest.mark.parametrize("transcript", GOLDEN, ids=lambda t: t.folder.name)
BODY = b'{"model": "m", "input": "Hello.", "stream": true}'
SUMMED = b'{"model": "m", "input": "Hello.", "stream": true, "reasoning": {"summary": "auto"}}'


def read(stream: bytes, size: int = 0) -> list[Event]:
    reader = ResponsesReader()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)] if size else [stream]
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    return [event for event in events if not isinstance(event, ResponseFields)]


def carried(message: Message, failure: bool = True) -> Message:
    """Return the part of a message that this API carries: no blank texts and no stop sequence."""
    blocks: list[OutputBlock] = [
        msgspec.structs.replace(block, raw="")
        for block in message.blocks
        if not (isinstance(block, TextBlock) and not block.text.strip())
    ]
    broken = message.failure is not None
    finish = {"stop_sequence": "stop", "context_window": "length"}.get(message.finish)
    expected = message.failure
    if expected is not None:
        expected = Failure(expected.kind if failure else "engine", expected.message)
    return Message(
        blocks=tuple(blocks),
        finish="error" if broken else finish or message.finish,  # type: ignore[arg-type]
        usage=Usage() if broken else message.usage,
        failure=expected,
    )


@EACH
def test_golden_streams_are_read_back(transcript: Transcript) -> None:
    found = fold(read(transcript.stream()))
    expected = carried(transcript.message(), failure=False)
    assert msgspec.structs.replace(found, logprobs=()) == expected


@EACH
def test_golden_responses_decode_as_their_streams(transcript: Transcript) -> None:
    if transcript.failure() is not None:
        pytest.skip("a failure is no answer")
    found = fold(ResponsesReader().whole(transcript.whole()))
    found = msgspec.structs.replace(found, response_fields=None)
    streamed = fold(read(transcript.stream()))
    assert found == msgspec.structs.replace(streamed, logprobs=())


@given(scripts(failing=True), st.integers(0, 9), st.booleans())
def test_any_stream_is_read_back_in_any_chunks(
    events: list[Event], size: int, summary: bool
) -> None:
    request = CODEC.decode(SUMMED if summary else BODY, {})
    stream = CODEC.stream(request, CountingIds(), clock).encode(events)
    assert fold(read(stream, size)) == carried(fold(events))


def test_call_closes_when_its_item_is_done() -> None:
    parallel = next(t for t in GOLDEN if t.folder.name == "parallel_calls")
    head, _, _ = parallel.stream().partition(b"event: response.completed")
    events = ResponsesReader().feed(head)
    assert CallClose(0) in events
    assert CallClose(1) in events


def frame(kind: str, **fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


def completed(**more: Any) -> bytes:
    return frame("response.completed", response={"status": "completed", **more})


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TEXT = {"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}


class TestOtherServers:
    def test_items_without_deltas(self) -> None:
        reasoning = {"type": "reasoning", "summary": [], "content": [{"text": "Hm."}]}
        stream = b"".join(
            frame("response.output_item.done", output_index=at, item=item)
            for at, item in enumerate((reasoning, TEXT, CALL))
        )
        assert read(stream + completed()) == [
            ReasoningDelta("Hm."),
            SpanEnd("reasoning"),
            TextDelta("Hi."),
            SpanEnd("text"),
            CallOpen(0, "f", "c"),
            CallArgs(0, "{}"),
            CallClose(0),
            Finish("tool_calls"),
        ]

    def test_items_only_in_the_final_response(self) -> None:
        usage = {"input_tokens": 3, "output_tokens": 1}
        found = fold(read(completed(output=[TEXT, CALL], usage=usage)))
        assert [block.type for block in found.blocks] == ["text", "tool_call"]
        assert found.usage == Usage(3, 1)

    def test_deltas_of_items_without_an_added_event(self) -> None:
        stream = frame("response.output_text.delta", delta="a") + completed()
        assert read(stream) == [TextDelta("a"), SpanEnd("text"), Finish("stop")]

    def test_items_without_index_and_id(self) -> None:
        stream = (
            frame("response.reasoning_text.delta", delta="t")
            + frame("response.output_text.delta", delta="a")
            + frame("response.output_item.added", item={**CALL, "arguments": ""})
            + frame("response.function_call_arguments.delta", delta="{}")
            + frame("response.output_item.done", item=CALL)
        )
        found = fold(read(stream + completed()))
        assert [block.type for block in found.blocks] == ["reasoning", "text", "tool_call"]

    def test_text_streamed_without_an_index_is_not_emitted_twice(self) -> None:
        stream = frame("response.output_text.delta", delta="Hi.") + completed(output=[TEXT, CALL])
        found = fold(read(stream))
        assert [block.type for block in found.blocks] == ["text", "tool_call"]
        assert found.blocks[0] == TextBlock("Hi.")

    def test_items_are_identified_by_their_ids(self) -> None:
        """llama.cpp sends no index, and its calls are done when all of them are complete."""
        calls = [{**CALL, "id": f"fc_{at}", "call_id": f"c{at}"} for at in range(2)]
        stream = b"".join(
            frame("response.output_item.added", item={**call, "arguments": ""})
            + frame("response.function_call_arguments.delta", item_id=call["id"], delta="{}")
            for call in calls
        )
        stream += b"".join(frame("response.output_item.done", item=call) for call in calls)
        found = fold(read(stream + completed(output=calls)))
        assert found.blocks == (ToolCallBlock("c0", "f", "{}"), ToolCallBlock("c1", "f", "{}"))

    def test_items_streamed_concurrently(self) -> None:
        """Events have one call open at a time; otherwise a client would close it too early."""
        delta, calls = "response.function_call_arguments.delta", []
        stream = b""
        for at, name in enumerate("fg"):
            call = {**CALL, "id": name, "call_id": name, "name": name, "arguments": '{"a":1}'}
            added = {**call, "arguments": ""}
            stream += frame("response.output_item.added", output_index=at, item=added)
            calls.append(call)
        for piece in ('{"a"', ":1}"):
            for at, name in enumerate("fg"):
                stream += frame(delta, output_index=at, item_id=name, delta=piece)
        stream += frame("response.output_text.delta", output_index=2, delta="Hi.")
        for at, call in enumerate(calls):
            stream += frame("response.output_item.done", output_index=at, item=call)
        expected: list[Event] = []
        for at, name in enumerate("fg"):
            expected += [CallOpen(at, name, name), CallArgs(at, '{"a"'), CallArgs(at, ":1}")]
            expected.append(CallClose(at))
        ended = [TextDelta("Hi."), SpanEnd("text"), Finish("tool_calls")]
        assert read(stream + completed()) == [*expected, *ended]

    def test_summary_replaces_missing_reasoning(self) -> None:
        summary = "response.reasoning_summary_text.delta"
        sealed = {"type": "reasoning", "summary": [{"text": "a"}], "encrypted_content": "seal"}
        stream = (
            frame(summary, output_index=0, summary_index=0, delta="a")
            + frame(summary, output_index=0, summary_index=1, delta="b")
            + frame("response.output_item.done", output_index=0, item=sealed)
        )
        assert fold(read(stream + completed())).blocks == (ReasoningBlock("a\n\nb", "seal"),)

    def test_reasoning_with_only_a_seal(self) -> None:
        sealed = {"type": "reasoning", "summary": [], "encrypted_content": "seal"}
        stream = frame("response.output_item.done", output_index=0, item=sealed)
        assert fold(read(stream + completed())).blocks == (ReasoningBlock("", "seal"),)

    def test_log_probabilities(self) -> None:
        logprobs = [
            {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
        ]
        stream = frame("response.output_text.delta", delta="a", logprobs=logprobs)
        assert read(stream)[0] == Logprobs((TokenLogprob("a", -1.0, (("b", -2.0),)),))

    def test_truncated_call_stays_open(self) -> None:
        truncated = {**CALL, "arguments": '{"a', "status": "incomplete"}
        stream = frame("response.output_item.added", output_index=0, item={**CALL, "arguments": ""})
        details = {"reason": "max_output_tokens"}
        end = {"status": "incomplete", "output": [truncated], "incomplete_details": details}
        message = fold(read(stream + frame("response.incomplete", response=end)))
        assert message.finish == "length"
        assert [getattr(block, "complete", None) for block in message.blocks] == [False]

    def test_refusal_text(self) -> None:
        end = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
        assert read(frame("response.incomplete", response=end)) == [Finish("refusal")]

    def test_arguments_of_an_unknown_call_are_reported(self) -> None:
        late = frame("response.function_call_arguments.delta", output_index=3, delta="{}")
        assert read(late + completed())[0] == Diagnostic("late_arguments")

    def test_interrupted_stream_fails(self) -> None:
        (event,) = read(frame("response.created", response={"status": "in_progress"}))
        assert isinstance(event, Failure)

    def test_invalid_frame_is_reported(self) -> None:
        odd = b'data: {\n\ndata: []\n\n: ping\n\ndata: [DONE]\n\ndata: {"type": "new.event"}\n\n'
        assert read(odd + completed()) == [Diagnostic("malformed_chunk")] * 2 + [Finish("stop")]

    def test_nothing_follows_the_end(self) -> None:
        more = frame("response.output_text.delta", delta="a")
        assert read(completed() + more) == [Finish("stop")]

    def test_body_that_is_not_a_response(self) -> None:
        (event,) = ResponsesReader().whole(b"<html>")
        assert isinstance(event, Failure)


FAILURES: list[tuple[bytes, Failure]] = [
    (
        frame("response.failed", response={"status": "failed", "error": {"code": "server_error"}}),
        Failure("engine", "The upstream server reported an error."),
    ),
    (
        frame("error", code="rate_limit_exceeded", message="Slow down."),
        Failure("rate_limited", "Slow down."),
    ),
    (
        frame("error", error={"code": "context_length_exceeded", "message": "Long.", "param": "p"}),
        Failure("context_overflow", "Long.", "p"),
    ),
    (
        frame("response.failed", response={"error": {"code": "invalid_prompt", "message": "No."}}),
        Failure("invalid_request", "No."),
    ),
    (completed(error="It broke."), Failure("engine", "It broke.")),
]


@pytest.mark.parametrize(("stream", "failure"), FAILURES, ids=lambda value: str(value)[:40])
def test_failures(stream: bytes, failure: Failure) -> None:
    assert read(stream + completed()) == [failure]


KINDS = ["response.output_item.added", "response.output_text.delta", "response.completed", "error"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "item", "delta", "output_index", "response", "error"]), inner
        )
    ),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=4))
def test_reader_never_raises(frames: list[Any]) -> None:
    stream = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in frames)
    assert isinstance(read(stream)[-1], Finish | Failure)
