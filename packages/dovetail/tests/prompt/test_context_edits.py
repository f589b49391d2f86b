"""Context edits on turns: tables, then properties on random histories."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.prompt.context_edits import (
    CLEARED_RESULT,
    NO_EDITS,
    ClearedReasoning,
    ClearedToolUses,
    ContextEdits,
    DroppedTurns,
    add_removed_tokens,
    apply_edits,
    clear_thinking,
    clear_tool_uses,
    drop_oldest_turns,
)
from dovetail.prompt.conversation_state import (
    ConversationState,
    StateRecord,
    decode_state,
    digest_edits,
    encode_state,
)
from dovetail.prompt.reasoning_retention import ReasoningPolicy, apply_retention
from dovetail_model import (
    AppliedEdit,
    ClearThinking,
    ClearToolUses,
    ContextManagement,
    EditTrigger,
    ReasoningBlock,
    ReasoningRetention,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

ANY_SIZE = EditTrigger("input_tokens", 0)


def user(text: str) -> Turn:
    return Turn("user", (TextBlock(text),))


def plain(text: str) -> Turn:
    return Turn("assistant", (ReasoningBlock(f"about {text}"), TextBlock(text)))


def calling(id: str, name: str = "read") -> Turn:
    call = ToolCallBlock(id, name, '{"path": "x"}')
    return Turn("assistant", (ReasoningBlock(f"about {id}"), call))


def result(id: str, text: str = "output " * 200, appended: str = "") -> Turn:
    shown = f"{text}\n\n{appended}" if appended else text
    return Turn("tool", (ToolResultBlock(id, (TextBlock(shown),), appended=appended),))


def loop(count: int, start: int = 0) -> list[Turn]:
    """A user turn and calls with their results."""
    turns = [user(f"go {start}")]
    for at in range(start, start + count):
        turns += [calling(f"c{at}"), result(f"c{at}")]
    return turns


def texts(turns: Sequence[Turn]) -> list[str]:
    """The texts of all results."""
    results = [b for turn in turns for b in turn.blocks if isinstance(b, ToolResultBlock)]
    return [b.text for found in results for b in found.blocks if isinstance(b, TextBlock)]


def cleared_count(turns: Sequence[Turn]) -> int:
    return sum(text.startswith(CLEARED_RESULT) for text in texts(turns))


TOOL_USE_CASES: dict[str, tuple[ClearToolUses, int, EditTrigger, int | None]] = {
    "all but the newest": (ClearToolUses(keep=2), 6, ANY_SIZE, 4),
    "none is kept": (ClearToolUses(keep=0), 6, ANY_SIZE, 6),
    "more are kept than there are": (ClearToolUses(keep=9), 6, ANY_SIZE, None),
    "below the trigger": (ClearToolUses(), 6, EditTrigger("input_tokens", 10_000), None),
    "not more calls than the trigger": (ClearToolUses(), 6, EditTrigger("tool_uses", 6), None),
    "more calls than the trigger": (ClearToolUses(), 6, EditTrigger("tool_uses", 5), 3),
    "all are of an excluded tool": (ClearToolUses(exclude_tools=("read",)), 6, ANY_SIZE, None),
}


@pytest.mark.parametrize("name", TOOL_USE_CASES)
def test_old_tool_results_are_cleared(name: str) -> None:
    edit, calls, trigger, cleared = TOOL_USE_CASES[name]
    turns = tuple(loop(calls))
    planned = clear_tool_uses(turns, NO_EDITS, edit, trigger, 10_000)
    if cleared is None:
        assert planned is None
        return
    assert planned is not None
    edited = apply_edits(turns, planned)
    assert [text.startswith(CLEARED_RESULT) for text in texts(edited.turns)] == (
        [True] * cleared + [False] * (calls - cleared)
    )
    assert edited.without_arguments == frozenset()
    assert planned.applied() == (AppliedEdit("clear_tool_uses_20250919", cleared, 0),)


def test_excluded_tools_and_arguments() -> None:
    turns = (
        user("go"),
        calling("c0", "memory"),
        result("c0"),
        calling("c1", "read"),
        result("c1"),
        calling("c2", "write"),
        result("c2"),
    )
    edit = ClearToolUses(keep=0, exclude_tools=("memory",), clear_inputs=("write",))
    planned = clear_tool_uses(turns, NO_EDITS, edit, ANY_SIZE, 10_000)
    assert planned is not None
    edited = apply_edits(turns, planned)
    assert cleared_count(edited.turns) == 2
    assert edited.turns[1:3] == turns[1:3]
    calls = [b for turn in edited.turns for b in turn.blocks if isinstance(b, ToolCallBlock)]
    assert [call.arguments for call in calls] == ['{"path": "x"}', '{"path": "x"}', "{}"]
    assert edited.without_arguments == {5}


def test_messages_of_the_client_stay_behind_a_cleared_result() -> None:
    turns = (user("go"), calling("c0"), result("c0", appended="Stop at noon."), *loop(1, 1)[1:])
    edited = apply_edits(turns, ContextEdits(tool_uses=ClearedToolUses(1)))
    assert texts(edited.turns)[0] == f"{CLEARED_RESULT}\n\nStop at noon."


def test_calls_with_the_same_id_are_distinguished() -> None:
    turns = (user("go"), *(t for _ in range(4) for t in (calling("call_0"), result("call-0"))))
    edited = apply_edits(turns, ContextEdits(tool_uses=ClearedToolUses(2)))
    assert [text.startswith(CLEARED_RESULT) for text in texts(edited.turns)] == [True] * 2 + [
        False
    ] * 2


def test_a_repeated_edit_waits_until_it_removes_enough() -> None:
    """A user turn of ten results' length: the second edit needs several results."""
    edit, state = ClearToolUses(keep=1), NO_EDITS
    first = user("x" * 28_000)
    cleared: list[int] = []
    for calls in range(2, 10):
        turns = (first, *loop(calls)[1:])
        planned = clear_tool_uses(turns, state, edit, ANY_SIZE, 10_000)
        if planned is not None:
            state = add_removed_tokens(planned, state, 100)
        cleared.append(state.applied()[0].count)
    assert cleared == [1, 1, 1, 4, 4, 4, 7, 7]
    assert state.applied()[0].tokens == 300


def thinking_turns(turns: Sequence[Turn]) -> list[int]:
    return [at for at, turn in enumerate(turns) if turn.role == "assistant"]


@pytest.mark.parametrize(("keep", "cleared"), [(0, 4), (1, 3), (3, 1), (4, None), (9, None)])
def test_old_reasoning_is_cleared(keep: int, cleared: int | None) -> None:
    turns = (user("a"), plain("b"), user("c"), *loop(3)[1:])
    indexes = thinking_turns(turns)
    planned = clear_thinking(turns, NO_EDITS, ClearThinking(keep), indexes)
    if cleared is None:
        assert planned is None
        return
    assert planned is not None
    edited = apply_edits(turns, planned)
    assert edited.without_reasoning == frozenset(indexes[:cleared])
    reasoning = [
        at
        for at, turn in enumerate(edited.turns)
        if any(isinstance(block, ReasoningBlock) for block in turn.blocks)
    ]
    assert reasoning == indexes[cleared:]
    assert planned.applied() == (AppliedEdit("clear_thinking_20251015", cleared, 0),)


def test_reasoning_that_the_template_drops_is_not_reported() -> None:
    state = ContextEdits(reasoning=(ClearedReasoning(4, 2, 50), ClearedReasoning(9, 1, 20)))
    assert state.applied(4) == (AppliedEdit("clear_thinking_20251015", 1, 20),)
    assert state.applied(9) == ()


def test_a_request_decides_which_edits_remain_in_force() -> None:
    rested = ClearedReasoning(2, 1, requested=False)
    state = ContextEdits(
        (rested, ClearedReasoning(4, 1)), ClearedToolUses(3), DroppedTurns(2), "all"
    )
    silent = state.restricted_to(ContextManagement(truncate=True))
    assert silent == state
    other = state.restricted_to(ContextManagement(edits=(ClearToolUses(),)))
    assert other == ContextEdits((rested,), ClearedToolUses(3), None, "all")
    none = state.restricted_to(ContextManagement(edits=()))
    assert none == ContextEdits((rested,), retention="all")


def test_edits_are_recorded_and_only_their_effect_is_compared() -> None:
    edits = ContextEdits(
        (ClearedReasoning(4, 2, 9),), ClearedToolUses(3, ("a",), ("b",), 3, 8), DroppedTurns(2, 1)
    )
    state = ConversationState(edits=edits)
    assert decode_state(encode_state(StateRecord(state)), "e").state == state
    uncounted = msgspec.structs.replace(
        edits, reasoning=(ClearedReasoning(4, 2),), tool_uses=ClearedToolUses(3, ("a",), ("b",))
    )
    assert digest_edits(state) == digest_edits(ConversationState(edits=uncounted))
    assert digest_edits(state) != digest_edits(ConversationState())
    assert digest_edits(ConversationState()) == b""


def test_turns_are_dropped_up_to_a_user_turn() -> None:
    turns = (*loop(2), plain("x"), *loop(2, 2), plain("y"), *loop(2, 4))
    dropped = drop_oldest_turns(turns, NO_EDITS, 100)
    assert dropped is not None
    assert dropped.dropped == DroppedTurns(6)
    more = drop_oldest_turns(turns, dropped, 100)
    assert more is not None
    assert more.dropped == DroppedTurns(12)
    edited = apply_edits(turns, more)
    assert edited.indexes == (12, 13, 14, 15, 16)
    assert edited.turns == turns[12:]


def test_the_newest_user_turn_stays_if_its_own_loop_is_too_long() -> None:
    turns = (Turn("system", (TextBlock("later"),)), *loop(1), plain("x"), *loop(4, 1))
    dropped = drop_oldest_turns(turns, NO_EDITS, 4000)
    assert dropped is not None
    assert dropped.dropped == DroppedTurns(10, 5)
    edited = apply_edits(turns, dropped)
    assert [turn.role for turn in edited.turns] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    rest = drop_oldest_turns(turns, dropped, 10**9)
    assert rest is not None
    assert rest.dropped == DroppedTurns(12, 5)
    assert drop_oldest_turns(turns, rest, 1) is None


RETENTION: dict[ReasoningRetention, ReasoningPolicy] = {
    "template": ReasoningPolicy(6),
    "all": ReasoningPolicy(0, forced_until=6),
    "none": ReasoningPolicy(6, frozenset({1, 3, 5})),
    "tool-turns": ReasoningPolicy(3, frozenset({1, 5}), 6),
}


@pytest.mark.parametrize("retention", RETENTION)
def test_retention(retention: ReasoningRetention) -> None:
    turns = (user("a"), plain("b"), *loop(1), plain("c"), user("d"), *loop(1, 1)[1:])
    assert apply_retention(turns, retention, 6) == RETENTION[retention]


def test_retention_without_finished_calls() -> None:
    turns = (user("a"), plain("b"), user("c"))
    assert apply_retention(turns, "tool-turns", 2) == ReasoningPolicy(2, frozenset({1}), 2)
    assert apply_retention(turns, "tool-turns", 0) == ReasoningPolicy(2, frozenset({1}), 0)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for at in range(draw(st.integers(1, 5))):
        turns += loop(draw(st.integers(0, 4)), 10 * at)
        if draw(st.booleans()):
            turns.append(plain(f"p{at}"))
    return tuple(turns if turns[-1].role != "assistant" else (*turns, user("end")))


EDITS = st.builds(
    ContextEdits,
    st.lists(st.builds(ClearedReasoning, st.integers(0, 30), st.just(1)), max_size=1).map(tuple),
    st.none() | st.builds(ClearedToolUses, st.integers(0, 20), inputs=st.booleans()),
    st.none(),
)


def pairs(turns: Sequence[Turn]) -> tuple[list[str], list[str]]:
    calls = [b.id for turn in turns for b in turn.blocks if isinstance(b, ToolCallBlock)]
    results = [b.call_id for turn in turns for b in turn.blocks if isinstance(b, ToolResultBlock)]
    return calls, results


@given(histories(), EDITS, st.integers(0, 20_000))
def test_calls_and_results_stay_together(
    turns: tuple[Turn, ...], edits: ContextEdits, chars: int
) -> None:
    edits = drop_oldest_turns(turns, edits, chars) or edits
    edited = apply_edits(turns, edits)
    calls, results = pairs(edited.turns)
    assert calls == results
    assert edited.turns[0].role == "user"
    newest = max(at for at, turn in enumerate(turns) if turn.role == "user")
    assert newest in (edited.indexes or range(len(turns)))


@given(histories(), EDITS, st.integers(0, 20_000))
def test_edits_are_idempotent_and_stable(
    turns: tuple[Turn, ...], edits: ContextEdits, chars: int
) -> None:
    """The same edits give the same prefix when the history grows: one break per edit."""
    edits = drop_oldest_turns(turns, edits, chars) or edits
    edited = apply_edits(turns, edits)
    in_place = msgspec.structs.replace(edits, dropped=None)
    assert apply_edits(apply_edits(turns, in_place).turns, in_place).turns == (
        apply_edits(turns, in_place).turns
    )
    longer = (*turns, plain("new"), *loop(2, 90))
    stable = ContextEdits(
        tuple(batch for batch in edits.reasoning if batch.until <= len(turns)),
        edits.tool_uses
        if edits.tool_uses and edits.tool_uses.until <= len(pairs(turns)[0])
        else None,
        edits.dropped,
    )
    grown = apply_edits(longer, stable).turns
    assert grown[: len(apply_edits(turns, stable).turns)] == apply_edits(turns, stable).turns
    assert len(edited.turns) <= len(turns)
