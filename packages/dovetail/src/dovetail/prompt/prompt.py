"""A prompt: token ids, and how they came about."""

from array import array
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.recognition import RecognizedHistory

How = Literal["grown", "resumed", "iterated", "cold"]


@dataclass(frozen=True)
class Head:
    """Digests of what stands before the first turn and of what steers the template."""

    system: bytes
    tools: bytes
    switches: bytes
    whole: bytes


@dataclass(frozen=True)
class Prompt:
    """The ids that go to the engine.

    `grown`: a known prompt and its turn, taken as they were, and a new suffix. `resumed`: a known
    prompt up to a user's turn, the template's own rendering from there. `iterated`: rendered up to
    the first known turn, then turn by turn. `cold`: the template's own rendering of all.
    `exact` are the places of turns that stand in it with the tokens the model gave them, `kept` of
    those that the template wrote the same, and that kept their tokens so, `written` of those put
    into the model's own notation. `reused` leading ids were taken as they were.
    `dropped`: the last known turn is left to the template now, which drops thoughts there.
    `opening` is how it ends behind the last role marker.
    """

    ids: "array[int]"
    how: How
    in_reasoning: bool
    head: Head
    recalled: RecognizedHistory
    exact: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    reused: int = 0
    dropped: bool = False
    opening: str | None = None
    notes: tuple[str, ...] = ()
