"""The state of a conversation: its encoding, and additions to prompts."""

import pytest

from dovetail.prompt.appended_text import append_text
from dovetail.prompt.conversation_state import (
    EMPTY_RECORD,
    ConversationState,
    PromptAddition,
    StateRecord,
    ToolSignature,
    append_additions,
    decode_state,
    encode_state,
)
from dovetail_model import ImageBlock, TextBlock, ToolCallBlock, ToolResultBlock, ToolSpec, Turn

_STATE = ConversationState(
    head_tools=(ToolSignature("read", b"12345678"),),
    late_tools=(ToolSpec("fetch", "Fetch a page.", {"type": "object"}, namespace="web."),),
    additions=(PromptAddition("notice", "old", "entry1"), PromptAddition("tools_added", "new")),
)


def test_new_additions_belong_to_the_entry_that_holds_the_state() -> None:
    decoded = decode_state(encode_state(StateRecord(_STATE)), "entry2")
    assert decoded.entry_id == "entry2"
    assert [one.entry_id for one in decoded.state.additions] == ["entry1", "entry2"]
    assert decoded.state.late_tools == _STATE.late_tools
    assert decoded.state.head_tools == _STATE.head_tools


@pytest.mark.parametrize("record", [EMPTY_RECORD, StateRecord(_STATE, "entry1")])
def test_empty_and_recorded_states_are_not_recorded_again(record: StateRecord) -> None:
    assert encode_state(record) == b""


def test_unchanged_state_refers_to_the_entry_that_has_it() -> None:
    record = StateRecord(_STATE, "entry1")
    assert record.with_state(_STATE) is record
    assert record.with_state(ConversationState()).entry_id == ""


@pytest.mark.parametrize("encoded", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_undecodable_state_is_empty(encoded: bytes) -> None:
    assert decode_state(encoded, "entry1") == EMPTY_RECORD


_IMAGE = ImageBlock("image/png", "AAAA")


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (Turn("user", (TextBlock("a"),)), Turn("user", (TextBlock("a\n\nx"),))),
        (Turn("user", (_IMAGE,)), Turn("user", (_IMAGE, TextBlock("x")))),
        (
            Turn("tool", (ToolResultBlock("1", (TextBlock("a"),)),)),
            Turn("tool", (ToolResultBlock("1", (TextBlock("a\n\nx"),), appended="x"),)),
        ),
        (
            Turn("tool", (ToolResultBlock("1", ()), ToolResultBlock("2", (), True))),
            Turn(
                "tool",
                (ToolResultBlock("1", ()), ToolResultBlock("2", (TextBlock("x"),), True, "x")),
            ),
        ),
    ],
)
def test_text_is_appended_to_the_last_block(turn: Turn, expected: Turn) -> None:
    assert append_text(turn, "x") == expected


def test_additions_stay_before_the_turn_that_followed_them() -> None:
    turns = (
        Turn("user", (TextBlock("one"),)),
        Turn("assistant", (ToolCallBlock("1", "read", "{}"),)),
        Turn("tool", (ToolResultBlock("1", (TextBlock("two"),)),)),
        Turn("assistant", (TextBlock("three"),)),
        Turn("user", (TextBlock("four"),)),
    )
    additions = (
        PromptAddition("tools_added", "A", "entry1"),
        PromptAddition("tools_added", "B", "entry2"),
        PromptAddition("notice", "of another branch", "entry9"),
        PromptAddition("notice", "C"),
    )
    shown = append_additions(turns, {"entry1": 1, "entry2": 3}, additions)
    assert shown[0] == Turn("user", (TextBlock("one\n\nA"),))
    assert shown[2] == Turn("tool", (ToolResultBlock("1", (TextBlock("two\n\nB"),), appended="B"),))
    assert shown[4] == Turn("user", (TextBlock("four\n\nC"),))
    assert (shown[1], shown[3]) == (turns[1], turns[3])
