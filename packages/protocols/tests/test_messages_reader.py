"""Decoding Messages streams and messages to events, Dovetail's own and other servers'."""

import json
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
    Event,
    Failure,
    Finish,
    Message,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    Usage,
    fold,
)
from dovetail_protocols import MESSAGES, MessagesReader

MINE = [transcript for transcript in transcripts() if transcript.api == "messages"]
EACH = pytest.mark.parametrize("transcript", MINE, ids=lambda t: t.folder.name)


def read(stream: bytes, size: int = 0) -> list[Event]:
    reader = MessagesReader()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)] if size else [stream]
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


def carried(message: Message) -> Message:
    """Return the part of a message that the API carries: no blank text, custom input as object."""
    limits = ("cancelled", "error")
    return Message(
        blocks=tuple(filter(None, map(_block, message.blocks))),
        finish="stop" if message.finish in limits else message.finish,
        stop_sequence=message.stop_sequence,
        usage=Usage() if message.failure else message.usage,
        failure=message.failure and Failure("engine", message.failure.message),
    )


def _block(block: OutputBlock) -> OutputBlock | None:
    match block:
        case TextBlock(text=text):
            return TextBlock(text) if text.strip() else None
        case ReasoningBlock(text=text, seal=seal):
            return ReasoningBlock(text, seal) if text or seal else None
        case call:
            written = call.arguments
            if call.custom:
                written = json.dumps({"input": call.arguments}, ensure_ascii=False)
            return ToolCallBlock(call.id, call.name, _plain(written), complete=call.complete)


def _plain(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"))
    except ValueError:
        return ""


def spelled(message: Message) -> Message:
    """Return the message with normalized arguments; truncated calls are reduced to their name."""
    return msgspec.structs.replace(carried(message), raw="")


@EACH
def test_golden_streams_are_read_back(transcript: Transcript) -> None:
    found, expected = fold(read(transcript.stream())), transcript.message()
    assert spelled(found) == spelled(expected)


@EACH
def test_golden_messages_are_read_back(transcript: Transcript) -> None:
    if transcript.failure():
        pytest.skip("it has no whole answer")
    body = (transcript.folder / "messages.json").read_bytes()
    found = fold(MessagesReader().whole(body))
    expected = spelled(transcript.message())
    if any(isinstance(b, ToolCallBlock) and not b.complete for b in expected.blocks):
        pytest.skip("a whole answer does not say that a call was cut")
    assert spelled(found) == expected


@st.composite
def json_call_events(draw: st.DrawFn) -> list[Event]:
    """Draw scripts whose calls have JSON arguments, in the same number of fragments."""
    events = draw(scripts(failing=True))
    whole = {event.index for event in events if isinstance(event, CallClose)}
    made: list[Event] = []
    for event in events:
        if isinstance(event, CallOpen):
            event = CallOpen(event.index, event.name, event.id)
            made += [event, CallArgs(event.index, '{"a": ')]
        elif isinstance(event, CallArgs):
            continue
        elif isinstance(event, CallClose):
            made += [CallArgs(event.index, json.dumps(draw(st.text(max_size=5))) + "}"), event]
        else:
            made.append(event)
    assert whole <= {event.index for event in made if isinstance(event, CallOpen)}
    return made


@given(json_call_events(), st.integers(0, 9), st.booleans())
def test_any_stream_is_read_back_in_any_chunks(
    events: list[Event], size: int, dispatch: bool
) -> None:
    body = request_body(max_tokens=9, nvext={"dispatch": dispatch})
    stream = MESSAGES.stream(MESSAGES.decode(body, {}), CountingIds(), clock).encode(events)
    assert spelled(fold(read(stream, size))) == spelled(fold(events))


def frames(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def started(at: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": at, "content_block": block}


def stopped(at: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": at}


class TestOtherServers:
    def test_counts_add_up_and_later_ones_replace_earlier_ones(self) -> None:
        usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
        start = {"type": "message_start", "message": {"content": [], "usage": usage}}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        stop = {"type": "message_stop"}
        assert read(frames(start, {**end, "usage": {"output_tokens": 7}}, stop)) == [
            Usage(10, 0, 3),
            Usage(10, 7, 3),
            Finish("stop"),
        ]

    def test_input_in_the_start_of_a_call(self) -> None:
        call = started(0, type="tool_use", id="t", name="look", input={"at": 1})
        assert read(frames(call, stopped(0)))[:3] == [
            CallOpen(0, "look", "t"),
            CallArgs(0, '{"at":1}'),
            CallClose(0),
        ]

    def test_call_without_input_is_complete(self) -> None:
        call = started(0, type="tool_use", id="t", name="look", input={})
        assert read(frames(call, stopped(0)))[1] == CallClose(0)

    def test_sealed_reasoning_without_text(self) -> None:
        hidden = started(0, type="redacted_thinking", data="sealed")
        assert read(frames(hidden, stopped(0)))[:2] == [
            ReasoningDelta(""),
            SpanEnd("reasoning", seal="sealed"),
        ]

    def test_blocks_of_server_tools_are_skipped(self) -> None:
        search = started(0, type="server_tool_use", id="s", name="web_search", input={})
        text = started(1, type="text", text="Found.")
        found = read(frames(search, stopped(0), text, stopped(1)))
        assert found[:2] == [TextDelta("Found."), SpanEnd("text")]

    def test_interrupted_stream_is_a_failure(self) -> None:
        found = read(frames(started(0, type="text", text="Fou")))
        assert isinstance(found[-1], Failure)

    def test_errors_keep_their_kind(self) -> None:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}
        assert read(frames(error)) == [Failure("overloaded", "Busy.")]
        too_long = {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}
        body = json.dumps({"type": "error", "error": too_long}).encode()
        assert MessagesReader().whole(body) == [Failure("context_overflow", too_long["message"])]

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"'])
    def test_body_that_is_not_a_message(self, body: bytes) -> None:
        assert isinstance(MessagesReader().whole(body)[-1], Failure)

    def test_invalid_frames_are_reported_and_skipped(self) -> None:
        stop = {"type": "message_stop"}
        found = read(b"data: {oops\n\n: comment\n\nevent: ping\ndata: {}\n\n" + frames(stop))
        assert [event.type for event in found] == ["diagnostic", "finish"]
