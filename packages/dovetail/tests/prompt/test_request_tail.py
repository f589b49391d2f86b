"""The texts at the end of a request are restored from their record, and only these."""

from collections.abc import Sequence

import pytest

from dovetail.prompt.request_tail import encode_tail, restore_tail
from dovetail_model import Block, Role, TextBlock, ToolResultBlock, Turn

REMINDER = "<reminder>\nThe mode is plan.\n</reminder>"
OTHER = "<context>\nrunning: none\n</context>"
CALLS = Turn("assistant", (TextBlock("Done."),))


def turn(role: Role, *blocks: Block | str) -> Turn:
    return Turn(role, tuple(TextBlock(b) if isinstance(b, str) else b for b in blocks))


RESULT = ToolResultBlock("c1", (TextBlock("a file"),))


@pytest.mark.parametrize(
    ("sent", "later"),
    [
        ([turn("user", "Go."), turn("user", REMINDER)], [turn("user", "Go.")]),
        ([turn("user", "Go.", REMINDER)], [turn("user", "Go.")]),
        ([turn("user", "Go.", REMINDER, OTHER)], [turn("user", "Go.")]),
        ([turn("user", "Go.", REMINDER, OTHER)], [turn("user", "Go.", REMINDER)]),
        ([turn("user", "Go.", REMINDER), turn("system", OTHER)], [turn("user", "Go.")]),
        ([turn("user", f"Go.\n\n{REMINDER}")], [turn("user", "Go.")]),
        ([turn("user", f"Go.\n\n{REMINDER}")], [turn("user", "Go.\n\n")]),
        ([turn("user", RESULT, REMINDER)], [turn("user", RESULT)]),
        ([turn("tool", RESULT), turn("user", REMINDER)], [turn("tool", RESULT)]),
        ([turn("user", REMINDER)], []),
    ],
)
def test_removed_texts_are_restored(sent: Sequence[Turn], later: Sequence[Turn]) -> None:
    encoded = encode_tail((turn("user", "Before."), CALLS, *sent))
    assert restore_tail(tuple(later), encoded, lambda text: True) == tuple(sent)
    assert restore_tail(tuple(later), encoded, lambda text: False) is None


@pytest.mark.parametrize(
    "later",
    [
        [turn("user", "Go.", REMINDER)],
        [turn("user", "Stop.")],
        [turn("assistant", "Go.")],
        [turn("user", "Go."), turn("user", "On.")],
        [],
    ],
    ids=["complete", "edited", "another role", "more", "nothing"],
)
def test_other_turns_are_not_changed(later: Sequence[Turn]) -> None:
    encoded = encode_tail((turn("user", "Go.", REMINDER),))
    assert restore_tail(tuple(later), encoded, lambda text: True) is None


@pytest.mark.parametrize(
    "sent",
    [
        (),
        (turn("user", "Go."),),
        (turn("user", "Is a < b\n<c"),),
        (turn("user", RESULT),),
        (turn("user", "Go.", f"<reminder>{'x' * 40_000}</reminder>"),),
        (turn("user", REMINDER), CALLS, turn("user", "Go.")),
    ],
    ids=["nothing", "a question", "not an element", "a result", "too long", "an earlier turn"],
)
def test_other_texts_are_not_recorded(sent: tuple[Turn, ...]) -> None:
    assert encode_tail(sent) == b""


def test_undecodable_record_is_ignored() -> None:
    assert restore_tail((turn("user", "Go."),), b"\xc1", lambda text: True) is None
