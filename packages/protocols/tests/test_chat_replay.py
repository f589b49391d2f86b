"""The copy of a response that a client sends back, and how much of the order it preserves."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from generated_events import request_body, scripts
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from hypothesis import given

from dovetail_model import (
    Block,
    Event,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    fold,
)
from dovetail_protocols.chat import CODEC

WELL = [t for t in transcripts() if t.api == "chat" and t.failure() is None]
EACH = pytest.mark.parametrize("transcript", WELL, ids=lambda t: t.folder.name)


def assistant_message(message: Message) -> dict[str, Any]:
    """Return the assistant message of the response, with its segments."""
    body = request_body(nvext={"extra_fields": ["reasoning_segments"]})
    whole = CODEC.encode_message(CODEC.decode(body, {}), [message], CountingIds(), clock)
    return dict(msgspec.json.decode(whole)["choices"][0]["message"])


def replayed(message: dict[str, Any]) -> tuple[Block, ...]:
    """Return the turn that this copy decodes to if every call has a result."""
    ids = [call["id"] for call in message.get("tool_calls", [])]
    results = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in ids]
    messages = [{"role": "user", "content": "Hello."}, message, *results]
    turns = CODEC.decode(request_body(messages=messages), {}).turns
    decoded = turns[2].blocks if ids else ()
    assert [b.call_id for b in decoded if isinstance(b, ToolResultBlock)] == ids
    return turns[1].blocks


def reasoning_and_calls(blocks: Iterable[Block]) -> list[tuple[str, ...]]:
    """Return reasoning and calls in order; reasoning without a call in between is one entry."""
    found: list[tuple[str, ...]] = []
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            found.append((block.id, block.name, block.arguments, str(block.custom)))
        elif isinstance(block, ReasoningBlock):
            before = found.pop()[1] if found and found[-1][0] == "" else ""
            found.append(("", before + block.text))
    return found


def text(blocks: Iterable[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def of(kind: str, blocks: Iterable[Block]) -> list[tuple[str, ...]]:
    return [
        each for each in reasoning_and_calls(blocks) if (each[0] == "") == (kind == "reasoning")
    ]


@EACH
def test_plain_copy_preserves_calls_ids_and_reasoning(transcript: Transcript) -> None:
    message = transcript.message()
    copy = {**assistant_message(message), "reasoning_segments": None}
    found = replayed(copy)
    assert of("calls", found) == of("calls", message.blocks)
    reasoning = "".join(each[1] for each in of("reasoning", message.blocks))
    assert reasoning_and_calls(found)[: bool(reasoning)] == ([("", reasoning)] if reasoning else [])
    assert text(found) == text(message.blocks)


@EACH
def test_copy_with_segments_preserves_the_models_order(transcript: Transcript) -> None:
    message = transcript.message()
    found = replayed(assistant_message(message))
    assert reasoning_and_calls(found) == reasoning_and_calls(message.blocks)
    assert text(found) == text(message.blocks)


@EACH
def test_segments_sent_as_reasoning_content_decode_the_same(transcript: Transcript) -> None:
    copy = assistant_message(transcript.message())
    moved = {**copy, "reasoning_content": copy["reasoning_segments"], "reasoning_segments": None}
    assert replayed(moved) == replayed(copy)


def test_interleaved_reasoning_round_trips_block_by_block() -> None:
    transcript = next(t for t in WELL if t.folder.name == "think_call_think_call")
    assert replayed(assistant_message(transcript.message())) == (
        ReasoningBlock("First Paris."),
        ToolCallBlock("call_a", "get_weather", '{"city": "Paris"}'),
        ReasoningBlock("Then Oslo."),
        ToolCallBlock("call_b", "get_weather", '{"city": "Oslo"}'),
    )


@given(scripts())
def test_any_message_round_trips_with_reasoning_before_its_calls(events: list[Event]) -> None:
    message = fold(events)
    found = replayed(assistant_message(message))
    assert reasoning_and_calls(found) == reasoning_and_calls(message.blocks)
    assert text(found) == text(message.blocks)
