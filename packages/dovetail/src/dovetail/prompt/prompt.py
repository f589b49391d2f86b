"""A rendered prompt: token ids and their origin."""

from array import array
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.prompt.conversation_state import EMPTY_RECORD, StateRecord

PromptOrigin = Literal["grown", "resumed", "iterated", "cold"]


@dataclass(frozen=True)
class HeadDigests:
    """Digests of the prompt's head: system text, tools and template switches.

    `whole` also covers the context edits: a prompt with other edits cannot be extended.
    """

    system: bytes
    tools: bytes
    switches: bytes
    whole: bytes


@dataclass(frozen=True)
class Prompt:
    """The token ids for the engine, and their origin.

    `origin`:
    - `grown`: a known prompt with its output, then a new suffix.
    - `resumed`: a known prompt up to a user turn, then text rendered by the template.
    - `iterated`: text rendered up to the first known turn, then spliced turn by turn.
    - `cold`: completely rendered by the template.

    `exact_turns`: the indexes of turns with their generated tokens.
    `unchanged_turns`: the indexes of turns that the template rendered exactly as generated, so
    that their tokens are preserved.
    `rewritten_turns`: the indexes of turns written in the model's own notation.
    `reused_tokens`: the number of leading ids that were reused from the ledger.
    `reasoning_dropped`: whether the template drops reasoning of the last known turn.
    `opening`: the end of the prompt after the last role marker.
    `state`: the state of the conversation, to be recorded with the generated turn.
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
    state: StateRecord = EMPTY_RECORD
