"""No prompt contains reasoning of another conversation, wherever processes crash or stores fail.

The long run is `tools/attack_histories.py`.
"""

import asyncio

import pytest
from crash_histories import run, run_history
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.ledger import candidates, recognition


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_reasoning_of_another_conversation(seed: int) -> None:
    asyncio.run(run_history(seed))


def test_turns_are_still_spliced() -> None:
    result = run(50, 0)
    assert result.wrong == 0
    assert result.crashes > 40
    assert result.spliced > result.turns / 5


def test_the_histories_find_a_recognizer_that_does_not_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the check for unknown lookalikes there are wrong splices."""

    def accept(found, turn, model, session, notes):  # type: ignore[no-untyped-def]
        return candidates.single_candidate(found.entries, notes)

    monkeypatch.setattr(recognition, "accept_unique", accept)
    assert run(100, 0).wrong > 0
