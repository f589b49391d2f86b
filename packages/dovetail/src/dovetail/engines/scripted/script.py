"""The types of a script: rules, and replies with their timing and interruptions.

The types whose fields are a script's keys (`ScriptEntry` and what is in it) are as they stand in
the file; `ScriptRule` and `ScriptedReply` are what they mean. The page docs/scripts.md explains
every key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]

ErrorKind = Literal["engine", "unavailable", "timeout", "overloaded"]
InterruptionMode = Literal["fail", "die", "hang"]
EndBehavior = Literal["last", "first", "fail"]


class ScriptError(Exception):
    """An invalid script. The message says where and why."""


class RuleCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on a request. Fields that are None match anything.

    `text` and `regex` are searched in the decoded prompt, or in its last `tail` characters.
    """

    text: str | None = None
    regex: str | None = None
    tail: PositiveInt | None = None
    shorter: NonNegativeInt | None = None
    longer: NonNegativeInt | None = None
    session: str | None = None


class ReplyDelay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to wait, in addition to the engine's rates.

    With `in_step` all replies emit at the same moments, as those that are decoded in one batch do.
    """

    first: NonNegativeFloat = 0.0
    between: NonNegativeFloat = 0.0
    in_step: bool = False


NO_DELAY = ReplyDelay()


class ReplyFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error in place of the rest of a reply."""

    after: NonNegativeInt = 0
    kind: ErrorKind = "engine"
    message: str = "the script says that this request fails"


class ScriptEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a script as it is written: a turn, or a rule if it has `when`."""

    when: RuleCondition | None = None
    times: PositiveInt | None = None
    turns: "tuple[ScriptEntry, ...] | None" = None
    text: str | None = None
    file: str | None = None
    tokens: tuple[NonNegativeInt, ...] | None = None
    chunks: PositiveInt | tuple[PositiveInt | str | tuple[NonNegativeInt, ...], ...] | None = None
    delay: NonNegativeFloat | ReplyDelay = NO_DELAY
    wait_for: str | None = None
    finish: Literal["stop", "length"] | None = None
    stop: bool | NonNegativeInt | str = True
    logprobs: float | tuple[float, ...] = 0.0
    fail: str | ReplyFailure | None = None
    die: bool | NonNegativeInt | None = None
    hang: bool | NonNegativeInt | None = None


class ScriptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script as a mapping. A bare list of entries means the same without the keys."""

    rules: tuple[ScriptEntry, ...] = ()
    turns: tuple[ScriptEntry, ...] = ()
    end: EndBehavior = "last"


@dataclass(frozen=True)
class ReplyInterruption:
    """How a reply is interrupted, once `after` of its tokens have been sent."""

    mode: InterruptionMode
    after: int = 0
    kind: ErrorKind = "unavailable"
    message: str = "the engine died"


@dataclass(frozen=True, eq=False)
class ScriptedReply:
    """One reply. `pieces` are texts or token ids, tokenized one by one and joined.

    `chunk_sizes` are the tokens of each delta, the last one repeated; None leaves it to the
    engine. With `one_delta_per_piece` every piece is one delta. The last delta waits until the
    file `wait_for` exists.
    """

    pieces: tuple[str | tuple[int, ...], ...]
    location: str = "the script"
    chunk_sizes: tuple[int, ...] | None = None
    one_delta_per_piece: bool = False
    delay: ReplyDelay = NO_DELAY
    wait_for: Path | None = None
    finish: Literal["stop", "length"] | None = None
    stop: bool | int | str = True
    logprobs: tuple[float, ...] = (0.0,)
    interruption: ReplyInterruption | None = None


@dataclass(frozen=True, eq=False)
class ScriptRule:
    """Replies for the requests that meet a condition, one after the other in each session."""

    replies: tuple[ScriptedReply, ...]
    when: RuleCondition | None = None
    times: int | None = None


@dataclass(frozen=True)
class Script:
    """Rules in the order in which they are tried. `end` says what follows the last turn."""

    rules: tuple[ScriptRule, ...]
    end: EndBehavior = "last"

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """The same reply to every request."""
        return cls.from_replies([ScriptedReply((text,))])

    @classmethod
    def from_replies(cls, replies: Sequence[ScriptedReply], end: EndBehavior = "last") -> "Script":
        """The turns of every session."""
        return cls((ScriptRule(tuple(replies)),), end)
