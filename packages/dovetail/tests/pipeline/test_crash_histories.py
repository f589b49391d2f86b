"""No turn of a prompt has reasoning of another turn, wherever processes crash or stores fail.

The long run is `tools/attack_histories.py`.
"""

import random

import crash_histories
import pytest
from simulated_stores import StoreKind

EVERY_STORE = pytest.mark.parametrize("kind", ["sqlite", "redis"])


@EVERY_STORE
def test_no_reasoning_of_another_turn(kind: StoreKind) -> None:
    result = crash_histories.run(30, random.randrange(2**32), kind)
    assert result.failures == []


@EVERY_STORE
def test_turns_are_still_spliced(kind: StoreKind) -> None:
    result = crash_histories.run(30, 0, kind)
    assert result.crashes > 20
    assert result.right > result.turns / 5
    assert result.earlier_wrong > 0
