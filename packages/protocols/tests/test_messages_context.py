"""Context management of the Messages API: edits, compaction, and their response fields."""

import json
from typing import Any

import pytest

from dovetail_model import (
    AppliedEdit,
    AppliedEdits,
    ClearThinking,
    ClearToolUses,
    Compact,
    Compaction,
    ContextManagement,
    EditTrigger,
    Event,
    Finish,
    InvalidRequest,
    Request,
    TextBlock,
    TextDelta,
    Turn,
    Usage,
    fold,
)
from dovetail_protocols import MESSAGES, SUMMARY_PREFACE, decode_count, encode_count

USER = {"role": "user", "content": "Hi."}
TOKENS = {"type": "input_tokens", "value": 5000}


def decode(**fields: Any) -> Request:
    body = {"model": "m", "messages": [USER], **fields}
    return MESSAGES.decode(json.dumps(body).encode(), {})


def ids(prefix: str) -> str:
    return f"{prefix}1"


def now() -> float:
    return 0.0


EDITS: list[tuple[dict[str, Any], object]] = [
    (
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 3}},
        ClearThinking(3),
    ),
    ({"type": "clear_thinking_20251015"}, ClearThinking(1)),
    ({"type": "clear_tool_uses_20250919"}, ClearToolUses(None, 3)),
    (
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "tool_uses", "value": 9},
            "keep": {"type": "tool_uses", "value": 0},
            "clear_at_least": TOKENS,
            "exclude_tools": ["memory"],
            "clear_tool_inputs": ["read"],
        },
        ClearToolUses(EditTrigger("tool_uses", 9), 0, 5000, ("memory",), ("read",)),
    ),
    (
        {"type": "clear_tool_uses_20250919", "trigger": TOKENS, "clear_tool_inputs": True},
        ClearToolUses(EditTrigger("input_tokens", 5000), clear_inputs=True),
    ),
    ({"type": "compact_20260112"}, Compact()),
    (
        {
            "type": "compact_20260112",
            "trigger": TOKENS,
            "instructions": "Be brief.",
            "pause_after_compaction": True,
        },
        Compact(5000, "Be brief.", pause=True),
    ),
]


@pytest.mark.parametrize(("edit", "decoded"), EDITS)
def test_edits_are_decoded(edit: dict[str, Any], decoded: object) -> None:
    request = decode(context_management={"edits": [edit]})
    assert request.context == ContextManagement(edits=(decoded,))  # type: ignore[arg-type]
    assert request.thinking.keep == "template"
    assert request.ignored == ()


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_retaining_all_reasoning_is_a_thinking_control(keep: object) -> None:
    edit = {"type": "clear_thinking_20251015", "keep": keep}
    request = decode(context_management={"edits": [edit]})
    assert request.thinking.keep == "all"
    assert request.context.edits == ()


def test_without_context_management_earlier_edits_stay() -> None:
    assert decode().context.edits is None


def test_unknown_edits_and_their_unknown_fields_are_reported() -> None:
    edits = [{"type": "rewrite_20300101"}, {"type": "clear_tool_uses_20250919", "when": 1}]
    ignored = decode(context_management={"edits": edits}).ignored
    assert ignored == ("context_management.edits[0]", "context_management.edits[1].when")


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"keep": "all"}, "context_management.edits[0].type"),
    ({"type": "clear_thinking_20251015", "keep": 5}, "context_management.edits[0].keep"),
    (
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "turns", "value": 1}},
        "context_management.edits[0].trigger.type",
    ),
    (
        {"type": "compact_20260112", "trigger": {"type": "tool_uses", "value": 1}},
        "context_management.edits[0].trigger.type",
    ),
]


@pytest.mark.parametrize(("edit", "param"), INVALID)
def test_invalid_edits_are_rejected_by_name(edit: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(context_management={"edits": [edit]})
    assert raised.value.param == param


def test_a_request_for_a_summary() -> None:
    assert decode(compaction={"type": "summarize"}).context.summarize == ""
    own = decode(compaction={"type": "summarize", "instructions": " In one line. "})
    assert own.context.summarize == "In one line."
    body = {"model": "m", "messages": [USER], "compaction": {"type": "summarize"}}
    assert decode_count(json.dumps(body).encode(), {}).context.summarize is None


@pytest.mark.parametrize(
    "fields",
    [
        {"context_management": {"edits": []}},
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}],
                },
            ]
        },
    ],
)
def test_a_summary_is_impossible(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(compaction={"type": "summarize"}, **fields)
    assert raised.value.param == "compaction"


def compaction(content: str | None) -> dict[str, Any]:
    return {"type": "compaction", "content": content}


def test_a_compaction_block_replaces_the_history_before_it() -> None:
    history = [
        USER,
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [compaction("Old."), {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "More."},
    ]
    summary = Turn("user", (TextBlock(SUMMARY_PREFACE + "Old."),))
    more = Turn("user", (TextBlock("More."),))
    assert decode(messages=history).turns == (
        summary,
        Turn("assistant", (TextBlock("Yes."),)),
        more,
    )
    alone = [{"role": "assistant", "content": [compaction("Old.")]}]
    assert decode(messages=alone).turns == (summary,)
    assert decode(messages=[*history, *alone, history[4]]).turns == (summary, more)


def test_a_failed_compaction_changes_nothing() -> None:
    history = [USER, {"role": "assistant", "content": [compaction(None)]}, USER]
    assert [turn.role for turn in decode(messages=history).turns] == ["user", "assistant", "user"]


CLEARED = (
    AppliedEdit("clear_tool_uses_20250919", 8, 50000),
    AppliedEdit("clear_thinking_20251015", 3, 15000),
)
CLEARED_JSON = [
    {
        "type": "clear_tool_uses_20250919",
        "cleared_tool_uses": 8,
        "cleared_input_tokens": 50000,
    },
    {
        "type": "clear_thinking_20251015",
        "cleared_thinking_turns": 3,
        "cleared_input_tokens": 15000,
    },
]


def respond(request: Request, events: list[Event]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the non-streaming response, and the events of its stream."""
    whole = json.loads(MESSAGES.encode_message(request, [fold(events)], ids, now))
    frames = MESSAGES.stream(request, ids, now).encode(events).decode()
    lines = [line for line in frames.splitlines() if line.startswith("data: ")]
    return whole, [json.loads(line.removeprefix("data: ")) for line in lines]


def test_applied_edits_are_reported() -> None:
    request = decode(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    events: list[Event] = [Usage(9), AppliedEdits(CLEARED), TextDelta("Hi."), Finish("stop")]
    whole, stream = respond(request, events)
    delta = next(event for event in stream if event["type"] == "message_delta")
    assert whole["context_management"] == {"applied_edits": CLEARED_JSON}
    assert delta["context_management"] == {"applied_edits": CLEARED_JSON}


def test_without_an_effect_the_list_is_empty_and_without_edits_absent() -> None:
    events: list[Event] = [Usage(9), TextDelta("Hi."), Finish("stop")]
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    whole, stream = respond(decode(context_management=edits), events)
    assert whole["context_management"] == {"applied_edits": []}
    assert stream[-2]["context_management"] == {"applied_edits": []}
    whole, stream = respond(decode(), events)
    assert "context_management" not in whole
    assert "context_management" not in stream[-2]


def test_a_compaction_comes_first_and_has_its_own_usage() -> None:
    summary = Compaction("Old.", Usage(900, 30, 800))
    events: list[Event] = [Usage(), summary, TextDelta("Hi."), Usage(20, 2), Finish("stop")]
    whole, stream = respond(decode(), events)
    assert whole["content"] == [compaction("Old."), {"type": "text", "text": "Hi."}]
    kinds = [event["type"] for event in stream]
    assert kinds[1:4] == ["content_block_start", "content_block_delta", "content_block_stop"]
    assert stream[1]["content_block"] == compaction(None)
    assert stream[2]["delta"] == {"type": "compaction_delta", "content": "Old."}
    assert [event["index"] for event in stream[1:7]] == [0, 0, 0, 1, 1, 1]
    for usage in (whole["usage"], stream[-2]["usage"]):
        assert usage["output_tokens"] == 2
        assert [one["type"] for one in usage["iterations"]] == ["compaction", "message"]
        assert usage["iterations"][0]["cache_read_input_tokens"] == 800


def test_a_response_may_be_a_compaction_alone() -> None:
    events: list[Event] = [Usage(), Compaction("Old.", Usage(900, 30)), Finish("compaction")]
    whole, stream = respond(decode(compaction={"type": "summarize"}), events)
    assert whole["content"] == [compaction("Old.")]
    assert whole["stop_reason"] == stream[-2]["delta"]["stop_reason"] == "compaction"
    assert len(whole["usage"]["iterations"]) == 1


def test_token_counts_before_and_after_edits() -> None:
    assert json.loads(encode_count(5)) == {"input_tokens": 5}
    assert json.loads(encode_count(5, 9)) == {
        "input_tokens": 5,
        "context_management": {"original_input_tokens": 9},
    }
