"""A response that a client replays decodes to the model's turn again."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from golden_transcripts import CountingIds, Transcript, clock, transcripts

from dovetail_model import (
    Event,
    Finish,
    Message,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
    Usage,
    fold,
)
from dovetail_protocols import SseReader
from dovetail_protocols.responses import CODEC
from dovetail_protocols.summary_text import SUMMARY_PREFACE

Items = list[dict[str, Any]]
OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
GOLDEN = [transcript for transcript in transcripts() if transcript.api == "responses"]
EACH = pytest.mark.parametrize("transcript", GOLDEN, ids=lambda t: t.id)


def done_items(stream: bytes) -> Items:
    """Return what a harness stores of a stream: the items that were done."""
    frames = [msgspec.json.decode(frame.data) for frame in SseReader().feed(stream)]
    return [frame["item"] for frame in frames if frame.get("type") == "response.output_item.done"]


def codex(items: Items) -> Items:
    """All items unchanged, including ids, whose prefixes Codex knows."""
    return items


def codex_without_ids(items: Items) -> Items:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def sdk(items: Items) -> Items:
    """Items dumped from the client's own types: null fields, no status."""
    return [{**item, "status": None, "caller": None, "phase": None} for item in items]


def opencode(items: Items) -> Items:
    """Reasoning with only seal and summary, messages without a type."""
    dropped = {"reasoning": {"content", "id", "status"}, "message": {"type", "id", "status"}}
    return [
        {name: item[name] for name in item if name not in dropped.get(item["type"], set())}
        for item in items
    ]


def followed(transcript: Transcript, items: Items) -> tuple[Turn, ...]:
    """Return the turns that the next request adds: the output, then the results of its calls."""
    body = msgspec.json.decode(transcript.body)
    before = body["input"]
    before = [{"role": "user", "content": before}] if isinstance(before, str) else before
    results = [
        {"type": OUTPUTS[item["type"]], "call_id": item["call_id"], "output": "ok"}
        for item in items
        if item.get("type") in OUTPUTS
    ]
    body["input"] = [*before, *items, *results]
    return CODEC.decode(msgspec.json.encode(body), {}).turns[len(before) :]


def complete_blocks(message: Message) -> tuple[OutputBlock, ...]:
    """Return the blocks of a message without truncated calls."""
    return tuple(
        msgspec.structs.replace(block, raw="")
        for block in message.blocks
        if not isinstance(block, ToolCallBlock) or block.complete
    )


@EACH
@pytest.mark.parametrize("client", [codex, codex_without_ids, sdk], ids=lambda c: c.__name__)
def test_full_replay_equals_the_models_turn(
    transcript: Transcript, client: Callable[[Items], Items]
) -> None:
    if transcript.failure() is not None:
        pytest.skip("a client does not replay what failed")
    turns = followed(transcript, client(done_items(transcript.stream())))
    blocks = complete_blocks(transcript.message())
    assert turns[:1] == ((Turn("assistant", blocks),) if blocks else ())
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    results = tuple(ToolResultBlock(call.id, (TextBlock("ok"),)) for call in calls)
    assert turns[1:] == ((Turn("tool", results),) if results else ())


@EACH
def test_replay_without_reasoning_has_every_seal_in_order(transcript: Transcript) -> None:
    if transcript.failure() is not None:
        pytest.skip("a client does not replay what failed")
    turns = followed(transcript, opencode(done_items(transcript.stream())))
    blocks = complete_blocks(transcript.message())
    assert [handle(block) for block in (turns[0].blocks if turns else ())] == [
        handle(block) for block in blocks
    ]


def handle(block: object) -> object:
    match block:
        case ReasoningBlock(seal=seal):
            return seal
        case ToolCallBlock(id=identity):
            return identity
        case TextBlock(text=text):
            return text
    raise AssertionError(block)


def test_namespace_is_restored_in_the_response_and_flattened_for_the_model() -> None:
    transcript = next(t for t in GOLDEN if t.folder.name == "namespaced_tool")
    (item,) = done_items(transcript.stream())
    assert (item["namespace"], item["name"]) == ("mcp__docs", "search")
    (call,) = followed(transcript, [item])[0].blocks
    assert isinstance(call, ToolCallBlock)
    shown = {(spec.namespace, spec.name): spec.model_name for spec in transcript.request().tools}
    assert shown[call.namespace, call.name] == "mcp__docs__search"


TRIGGER = b'{"model": "m", "input": [{"type": "compaction_trigger"}], "stream": true}'


def compact(*events: Event) -> tuple[Items, dict[str, Any], dict[str, Any]]:
    """Return the items of a compaction, the end of its stream, and its non-streaming response."""
    request = CODEC.decode(TRIGGER, {})
    stream = CODEC.stream(request, CountingIds(), clock).encode(events)
    whole = CODEC.encode_message(request, [fold(events)], CountingIds(), clock)
    last = msgspec.json.decode(SseReader().feed(stream)[-1].data)
    return done_items(stream), last, msgspec.json.decode(whole)


def test_compaction_is_one_item_that_decodes_to_the_summary() -> None:
    items, last, whole = compact(
        Usage(9), ReasoningDelta("Hm."), TextDelta("\nAll "), TextDelta("é."), Finish("stop")
    )
    assert [item["type"] for item in items] == ["compaction"]
    assert last["type"] == "response.completed"
    assert last["response"] == whole
    assert whole["output"] == items
    body = {"model": "m", "input": items}
    turns = CODEC.decode(msgspec.json.encode(body), {}).turns
    assert turns == (Turn("user", (TextBlock(SUMMARY_PREFACE + "All é."),)),)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([ReasoningDelta("Hm."), Finish("stop")], "failed"),
        ([TextDelta("Half of"), Finish("length")], "incomplete"),
    ],
)
def test_missing_summary_does_not_replace_the_conversation(
    events: list[Event], status: str
) -> None:
    items, last, whole = compact(*events)
    assert items == []
    assert last["response"] == whole
    assert whole["status"] == status
