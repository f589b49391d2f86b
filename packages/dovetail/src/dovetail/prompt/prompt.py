"""A prompt: token ids, and how they were built."""

from array import array
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.recognition import RecognizedHistory

PromptOrigin = Literal["grown", "resumed", "iterated", "cold"]


@dataclass(frozen=True)
class HeadDigests:
    """Digests of the prompt's head: system text, tools and template switches."""

    system: bytes
    tools: bytes
    switches: bytes
    whole: bytes


@dataclass(frozen=True)
class Prompt:
    """The ids that go to the engine, and where they come from.

    `origin` is `grown`: a known prompt and its turn, and a new suffix; `resumed`: a known prompt
    up to a user turn, rendered by the template from there; `iterated`: rendered up to the first
    known turn, then turn by turn; `cold`: rendered by the template as a whole.
    `exact_turns` are the indexes of turns with their generated tokens, `unchanged_turns` of those
    that the template rendered the same, so that they kept their tokens, `rewritten_turns` of those
    in the model's own notation. The first `reused_tokens` ids were reused from the ledger.
    `reasoning_dropped`: the template drops reasoning of the last known turn here.
    `opening` is the end of the prompt after the last role marker.
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
