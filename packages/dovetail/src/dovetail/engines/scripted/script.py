"""The types of a script: rules, and replies with their timing and interruptions.

The types whose fields are the keys of a script (`ScriptEntry` and the types in it) match the file
format; `ScriptRule` and `ScriptedReply` are the result of loading it. See docs/scripts.md for all
keys.
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
    """An invalid script. The message contains the location and the reason."""


class RuleCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on a request. Fields that are None match any request.

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

    With `in_step` all replies emit at the same moments, like replies that are decoded in one batch.
    """

    first: NonNegativeFloat = 0.0
    between: NonNegativeFloat = 0.0
    in_step: bool = False


NO_DELAY = ReplyDelay()


class ReplyFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error instead of the rest of a reply."""

    after: NonNegativeInt = 0
    kind: ErrorKind = "engine"
    message: str = "the script makes this request fail"


class ScriptEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a script as written: a turn, or a rule if it has `when`."""

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
    """A script as a mapping. A list of entries has the same meaning without the keys."""

    rules: tuple[ScriptEntry, ...] = ()
    turns: tuple[ScriptEntry, ...] = ()
    end: EndBehavior = "last"


@dataclass(frozen=True)
class ReplyInterruption:
    """How a reply is interrupted after `after` of its tokens have been sent."""

    mode: InterruptionMode
    after: int = 0
    kind: ErrorKind = "unavailable"
    message: str = "the engine died"


@dataclass(frozen=True, eq=False)
class ScriptedReply:
    """One reply.

    `pieces`: texts or token ids, tokenized one by one and joined.
    `chunk_sizes`: the tokens of each delta, the last one repeated. None selects the engine's
    default.
    `one_delta_per_piece`: every piece is one delta.
    `wait_for`: a file; the last delta is sent when it exists.
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
    """Replies for the requests that meet a condition, in order within each session."""

    replies: tuple[ScriptedReply, ...]
    when: RuleCondition | None = None
    times: int | None = None


@dataclass(frozen=True)
class Script:
    """Rules in the order in which they are tried. `end` defines what follows the last turn."""

    rules: tuple[ScriptRule, ...]
    end: EndBehavior = "last"

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """Create a script with the same reply to every request."""
        return cls.from_replies([ScriptedReply((text,))])

    @classmethod
    def from_replies(cls, replies: Sequence[ScriptedReply], end: EndBehavior = "last") -> "Script":
        """Create a script with these turns for every session."""
        return cls((ScriptRule(tuple(replies)),), end)
