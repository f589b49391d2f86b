"""The differences in form that are ignored in assistant turns: one test for each, and no others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_entries import turn as entry

from dovetail.ledger.entry import EntrySpan, LedgerEntry
from dovetail.ledger.equivalence import (
    EMPTY_TEXT_PLACEHOLDER,
    FormDifference,
    is_same_turn,
)
from dovetail.ledger.turn_digest import DIGEST_IGNORES, digest_turn
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolSpec,
    Turn,
)

replace = msgspec.structs.replace
ROOT = Path(__file__).parents[4]
LARGE, LARGE_AS_FLOAT = 12345678901234567890, 12345678901234567000
SCHEMA = {"type": "object", "properties": {"timeout": {"type": "number", "default": 30}}}
TOOLS = (ToolSpec("run", parameters=SCHEMA), ToolSpec("patch", parameters={}))

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
VALUES = WORDS | st.integers(-(10**9), 10**9) | st.booleans() | st.lists(st.integers(0, 9))


@st.composite
def generated_turns(draw: st.DrawFn) -> Turn:
    """Turns in which every difference in form is possible."""
    arguments = {
        "command": "cd /repo && ls",
        "id": LARGE,
        "count": 5,
        "new": "é  \ny\t\nz",
        "none": None,
        "more": draw(st.dictionaries(st.sampled_from("abc"), VALUES)),
    }
    return Turn(
        "assistant",
        (
            ReasoningBlock(draw(WORDS) + "first", seal="s"),
            TextBlock(draw(WORDS) + "I will look. "),
            ToolCallBlock("call_1", "run", json.dumps(arguments)),
            ReasoningBlock("second"),
            TextBlock("And again." + draw(WORDS)),
            ToolCallBlock("call_2", "patch", "*** Begin" + draw(WORDS), custom=True),
        ),
    )


def _record(turn: Turn) -> LedgerEntry:
    return entry("e", spans=tuple(map(_span, turn.blocks)))


def _span(block: Block) -> EntrySpan:
    match block:
        case ToolCallBlock(id=id, name=name, arguments=text, custom=custom, complete=complete):
            return EntrySpan("call", "", text, name=name, id=id, custom=custom, complete=complete)
        case ReasoningBlock(text=text):
            return EntrySpan("reasoning", "", text)
        case TextBlock(text=text):
            return EntrySpan("text", "", text)
    raise TypeError(block)


Change = Callable[[Turn], Turn]


def _flat(change: Callable[[Block], tuple[Block, ...]]) -> Change:
    return lambda turn: Turn(turn.role, tuple(b for old in turn.blocks for b in change(old)))


def _text(change: Callable[[str], tuple[str, ...]]) -> Change:
    return _flat(
        lambda b: tuple(map(TextBlock, change(b.text))) if isinstance(b, TextBlock) else (b,)
    )


def _arguments(change: Callable[[dict[str, Any]], dict[str, Any]], **spelling: Any) -> Change:
    def rewrite(block: Block) -> tuple[Block, ...]:
        if not isinstance(block, ToolCallBlock) or block.custom:
            return (block,)
        arguments = json.dumps(change(json.loads(block.arguments)), **spelling)
        return (replace(block, arguments=arguments),)

    return _flat(rewrite)


def _add_outer_space(turn: Turn) -> Turn:
    return Turn(turn.role, (TextBlock("\n "), *turn.blocks, TextBlock(" \n")))


def _move_calls_to_the_end(turn: Turn) -> Turn:
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    return Turn(turn.role, (*(b for b in turn.blocks if b not in calls), *calls))


def _to_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_floats(item) for key, item in value.items()}
    return float(value) if type(value) is int and abs(value) < 10**15 else value


FORM: dict[FormDifference, tuple[Change, ...]] = {
    FormDifference.REASONING: (
        _flat(lambda b: () if isinstance(b, ReasoningBlock) else (b,)),
        _flat(lambda b: (ReasoningBlock("", b.seal),) if isinstance(b, ReasoningBlock) else (b,)),
        _flat(
            lambda b: (ReasoningBlock(f" {b.text}\n"),) if isinstance(b, ReasoningBlock) else (b,)
        ),
    ),
    FormDifference.TEXT_SPACE: (_add_outer_space,),
    FormDifference.TEXT_BLOCKS: (_text(lambda text: (text[:3], text[3:])),),
    FormDifference.PLACEHOLDER: (
        lambda turn: Turn(turn.role, (TextBlock(EMPTY_TEXT_PLACEHOLDER), *turn.blocks)),
    ),
    FormDifference.ORDER: (_move_calls_to_the_end,),
    FormDifference.CALL_IDS: (
        _flat(lambda b: (replace(b, id=f"new{b.id}"),) if isinstance(b, ToolCallBlock) else (b,)),
    ),
    FormDifference.JSON_SPELLING: (
        _arguments(lambda given: dict(reversed(given.items())), indent=1, ensure_ascii=False),
    ),
    FormDifference.NUMBERS: (_arguments(_to_floats),),
    FormDifference.LARGE_NUMBERS: (_arguments(lambda given: {**given, "id": LARGE_AS_FLOAT}),),
    FormDifference.DEFAULTS: (
        _arguments(lambda given: {**given, "timeout": 30}),
        _arguments(lambda given: {**given, "added": False}),
    ),
    FormDifference.NULLS: (
        _arguments(lambda given: {k: v for k, v in given.items() if v is not None}),
    ),
    FormDifference.LINE_ENDS: (_arguments(lambda given: {**given, "new": "é\ny\nz"}),),
    FormDifference.CD_PREFIX: (_arguments(lambda given: {**given, "command": "ls"}),),
    FormDifference.INCOMPLETE_CALL: (_arguments(lambda given: {}),),
}

EDITS: dict[str, Change] = {
    "a word": _text(lambda text: (text + "z",)),
    "white space inside the text": _text(lambda text: (text.replace("will", "will "),)),
    "an indented line in arguments": _arguments(lambda given: {**given, "new": "é\n  y\nz"}),
    "a name": _flat(lambda b: (replace(b, name="ran"),) if isinstance(b, ToolCallBlock) else (b,)),
    "a namespace": _flat(
        lambda b: (replace(b, namespace="n"),) if isinstance(b, ToolCallBlock) else (b,)
    ),
    "the kind of a tool": _flat(
        lambda b: (replace(b, custom=not b.custom),) if isinstance(b, ToolCallBlock) else (b,)
    ),
    "a number": _arguments(lambda given: {**given, "count": 6}),
    "a number as text": _arguments(lambda given: {**given, "count": "5"}),
    "a value that is not the default": _arguments(lambda given: {**given, "timeout": 31}),
    "a key less": _arguments(lambda given: {k: v for k, v in given.items() if k != "count"}),
    "another command": _arguments(lambda given: {**given, "command": "cd /repo && rm"}),
    "a call less": lambda turn: Turn(turn.role, turn.blocks[:-1]),
    "calls in another order": lambda turn: Turn(
        turn.role, (*turn.blocks[:2], turn.blocks[5], *turn.blocks[3:5], turn.blocks[2])
    ),
    "an image more": lambda turn: Turn(turn.role, (*turn.blocks, ImageBlock(url="x"))),
    "a document more": lambda turn: Turn(turn.role, (*turn.blocks, DocumentBlock(text="x"))),
}


def test_every_difference_has_a_test_and_is_documented() -> None:
    assert set(FORM) == set(FormDifference)
    documented = " ".join((ROOT / "docs" / "exact-turns.md").read_text().split())
    assert [each for each in FormDifference if f"- {each}" not in documented] == []


@pytest.mark.parametrize("difference", FormDifference)
@given(turn=generated_turns())
def test_a_difference_in_form_is_ignored(difference: FormDifference, turn: Turn) -> None:
    recorded = _record(turn)
    if difference is FormDifference.INCOMPLETE_CALL:
        incomplete = (replace(span, complete=False) for span in recorded.spans)
        recorded = replace(recorded, spans=tuple(incomplete))
    for change in FORM[difference]:
        copy = change(turn)
        assert copy != turn
        assert is_same_turn(recorded, copy, TOOLS)
        same_digest = digest_turn(copy).digest == digest_turn(turn).digest
        assert same_digest == (difference in DIGEST_IGNORES)


@given(turn=generated_turns(), differences=st.lists(st.sampled_from(FormDifference), max_size=4))
def test_differences_in_form_can_be_combined(turn: Turn, differences: list[FormDifference]) -> None:
    copy = turn
    for difference in differences:
        if difference is not FormDifference.INCOMPLETE_CALL:
            copy = FORM[difference][0](copy)
    assert is_same_turn(_record(turn), copy, TOOLS)
    if DIGEST_IGNORES.issuperset(differences):
        assert digest_turn(copy).digest == digest_turn(turn).digest


@pytest.mark.parametrize("change", EDITS.values(), ids=list(EDITS))
@given(turn=generated_turns())
def test_any_other_difference_is_an_edit(change: Change, turn: Turn) -> None:
    copy = change(turn)
    assert not is_same_turn(_record(turn), copy, TOOLS)
    assert digest_turn(copy).digest != digest_turn(turn).digest


def test_other_reasoning_is_an_edit() -> None:
    turn = Turn("assistant", (ReasoningBlock("Hm."), TextBlock("Hi.")))
    assert not is_same_turn(
        _record(turn), Turn("assistant", (ReasoningBlock("Oh."), TextBlock("Hi.")))
    )
