"""Claude Code sends Dovetail's response back in its next request: everything in it is preserved.

It replays reasoning and text byte for byte, rewrites the inputs of tools, moves tool calls after
any later text, and sends results in the order in which the tools finished.
"""

from typing import Any

import msgspec
import pytest
from golden_transcripts import Transcript, transcripts
from messages_streams import check

from dovetail_model import (
    Block,
    CallOpen,
    ReasoningBlock,
    Request,
    SpanEnd,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

COMPLETE = [t for t in transcripts() if t.api == "messages" and t.failure() is None]
EACH = pytest.mark.parametrize("transcript", COMPLETE, ids=lambda t: t.id)


def rewritten(arguments: str) -> dict[str, Any]:
    """Return an input as Claude Code stores it: keys in another order, defaults filled in."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}  # truncated: it stores nothing
    return {"run_in_background": False, **dict(reversed(value.items()))}


def replayed_content(transcript: Transcript) -> list[dict[str, Any]]:
    """Return the assistant message as Claude Code replays it, from what it read in the stream."""
    content = check(transcript.stream()).content
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = rewritten(block["input"])
    return behind_text(content)


def behind_text(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = [block["type"] for block in content]
    if "tool_use" not in kinds or "text" not in kinds[kinds.index("tool_use") :]:
        return content
    tools = [block for block in content if block["type"] == "tool_use"]
    return [block for block in content if block["type"] != "tool_use"] + tools


def replay(transcript: Transcript) -> tuple[list[dict[str, Any]], Request]:
    """Return the next request: the history, the response and the results, the last one first."""
    content = replayed_content(transcript)
    body = msgspec.json.decode(transcript.body)
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in reversed(content)
        if block["type"] == "tool_use"
    ]
    body["messages"] += [
        {"role": "assistant", "content": content},
        {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        {"role": "system", "content": "A reminder."},
    ]
    return content, transcript.codec.decode(msgspec.json.encode(body), {})


def as_sent(block: dict[str, Any]) -> Block:
    if block["type"] == "thinking":
        return ReasoningBlock(block["thinking"], seal=block["signature"] or None)
    if block["type"] == "text":
        return TextBlock(block["text"])
    return ToolCallBlock(block["id"], block["name"], msgspec.json.encode(block["input"]).decode())


@EACH
def test_order_is_the_clients(transcript: Transcript) -> None:
    content, request = replay(transcript)
    assert [turn.role for turn in request.turns[-3:]] == ["assistant", "user", "system"]
    assert request.turns[-3].blocks == tuple(map(as_sent, content))


@EACH
def test_every_seal_and_id_is_preserved(transcript: Transcript) -> None:
    _, request = replay(transcript)
    events = transcript.events()
    blocks = request.turns[-3].blocks
    assert [b.seal for b in blocks if isinstance(b, ReasoningBlock)] == [
        e.seal for e in events if isinstance(e, SpanEnd) and e.kind == "reasoning"
    ]
    ids = [e.id for e in events if isinstance(e, CallOpen)]
    assert [b.id for b in blocks if isinstance(b, ToolCallBlock)] == ids
    results = [b.call_id for b in request.turns[-2].blocks if isinstance(b, ToolResultBlock)]
    assert results == list(reversed(ids))


@EACH
def test_previous_request_is_a_prefix_of_the_next(transcript: Transcript) -> None:
    before, (_, after) = transcript.request(), replay(transcript)
    assert after.turns[: len(before.turns)] == before.turns
    assert (after.system, after.tools) == (before.system, before.tools)


@EACH
def test_user_turn_that_becomes_a_string_is_the_same_turn(transcript: Transcript) -> None:
    """In later requests Claude Code sends a list of one text, with cache_control, as a string."""
    body = msgspec.json.decode(transcript.body)
    for message in body["messages"]:
        if isinstance(message["content"], list) and len(message["content"]) == 1:
            (block,) = message["content"]
            message["content"] = block["text"]
    again = transcript.codec.decode(msgspec.json.encode(body), {})
    assert again.turns == transcript.request().turns


def test_claude_code_moves_tools_after_later_text() -> None:
    (transcript,) = (t for t in COMPLETE if t.folder.name == "text_between_calls")
    kinds = [block["type"] for block in replayed_content(transcript)]
    assert kinds == ["text", "text", "tool_use", "tool_use"]


def test_claude_code_keeps_the_order_of_reasoning_and_calls() -> None:
    (transcript,) = (t for t in COMPLETE if t.folder.name == "think_call_think_call")
    kinds = [block["type"] for block in replayed_content(transcript)]
    assert kinds == ["thinking", "tool_use", "thinking", "tool_use"]
