"""A prompt: token ids, and how they came about."""

from array import array
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.recognition import RecognizedHistory

PromptOrigin = Literal["grown", "resumed", "iterated", "cold"]


@dataclass(frozen=True)
class HeadDigests:
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
    origin: PromptOrigin
    in_reasoning: bool
    head: HeadDigests
    history: RecognizedHistory
    exact_turns: frozenset[int] = frozenset()
    unchanged_turns: frozenset[int] = frozenset()
    rewritten_turns: frozenset[int] = frozenset()
    reused_tokens: int = 0
    reasoning_dropped: bool = False
    opening: str | None = None
    notes: tuple[str, ...] = ()
