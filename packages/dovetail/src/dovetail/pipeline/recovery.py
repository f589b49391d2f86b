"""Which defective turns of a model the server recovers (`--recover`)."""

from dataclasses import dataclass
from typing import Literal

RecoveryKind = Literal["reasoning", "empty", "loop"]

DEFAULT_LOOP_TOKENS = 4096
DEFAULT_IDENTICAL_CALLS = 5
#: How many times as often a call must repeat before the server ends the turn.
CALL_END_FACTOR = 4
#: How many times as long the repeated tail of a call's arguments must be: files are monotonous.
CALL_LOOP_FACTOR = 4


@dataclass(frozen=True)
class RecoveryPolicy:
    """The recoveries that the operator has enabled for a model.

    `kinds`: the defects to recover from.
    `loop_tokens`: how many tokens must repeat exactly before the output counts as a loop.
    `identical_calls`: after how many identical calls with identical results the model reads a
    notice; after `CALL_END_FACTOR` times as many, the server ends the turn.
    """

    kinds: frozenset[RecoveryKind]
    loop_tokens: int = DEFAULT_LOOP_TOKENS
    identical_calls: int = DEFAULT_IDENTICAL_CALLS


NO_RECOVERY = RecoveryPolicy(frozenset())
