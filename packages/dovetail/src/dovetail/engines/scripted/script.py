"""What a script says: rules, and answers with the manner in which they are given.

The types whose fields are a script's keys (`Entry` and what is in it) are as they stand in the
file; `Rule` and `Answer` are what they mean. The page docs/scripts.md explains every key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]

ErrorKind = Literal["engine", "unavailable", "timeout", "overloaded"]
Manner = Literal["fail", "die", "hang"]
End = Literal["last", "first", "fail"]


class ScriptError(Exception):
    """A script that cannot be played. The message says where and why."""


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on a request. What is not named does not matter.

    `text` and `regex` are looked for in the decoded prompt, or in its last `tail` characters.
    """

    text: str | None = None
    regex: str | None = None
    tail: Number | None = None
    shorter: Count | None = None
    longer: Count | None = None
    session: str | None = None


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to wait, beyond what the engine's rates ask for.

    `in_step` has all answers go on at the same moments, as those that are decoded in one batch do.
    """

    first: Seconds = 0.0
    between: Seconds = 0.0
    in_step: bool = False


NO_DELAY = Delay()


class Fail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error in place of the rest of an answer."""

    after: Count = 0
    kind: ErrorKind = "engine"
    message: str = "the script says that this request fails"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item of a script as it is written: a turn, or a rule if it has `when`."""

    when: When | None = None
    times: Number | None = None
    turns: "tuple[Entry, ...] | None" = None
    text: str | None = None
    file: str | None = None
    tokens: tuple[Count, ...] | None = None
    chunks: Number | tuple[Number | str | tuple[Count, ...], ...] | None = None
    delay: Seconds | Delay = NO_DELAY
    wait_for: str | None = None
    finish: Literal["stop", "length"] | None = None
    stop: bool | Count | str = True
    logprobs: float | tuple[float, ...] = 0.0
    fail: str | Fail | None = None
    die: bool | Count | None = None
    hang: bool | Count | None = None


class ScriptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script as a mapping. A bare list of entries means the same without the names."""

    rules: tuple[Entry, ...] = ()
    turns: tuple[Entry, ...] = ()
    end: End = "last"


@dataclass(frozen=True)
class Break:
    """How an answer breaks off, once `after` of its tokens have left."""

    manner: Manner
    after: int = 0
    kind: ErrorKind = "unavailable"
    message: str = "the engine died"


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer. `pieces` are texts or token ids, tokenized one by one and joined.

    `sizes` are the tokens of each delta, the last one repeated; None leaves it to the engine. With
    `keep_pieces` every piece is one delta. The last delta waits until the file `wait_for` is there.
    """

    pieces: tuple[str | tuple[int, ...], ...]
    where: str = "the script"
    sizes: tuple[int, ...] | None = None
    keep_pieces: bool = False
    delay: Delay = NO_DELAY
    wait_for: Path | None = None
    finish: Literal["stop", "length"] | None = None
    stop: bool | int | str = True
    logprobs: tuple[float, ...] = (0.0,)
    breaks: Break | None = None


@dataclass(frozen=True, eq=False)
class Rule:
    """Answers for the requests that meet a condition, one after the other in each session."""

    answers: tuple[Answer, ...]
    when: When | None = None
    times: int | None = None


@dataclass(frozen=True)
class Script:
    """Rules in the order in which they are tried. `end` says what follows the last turn."""

    rules: tuple[Rule, ...]
    end: End = "last"

    @classmethod
    def of_text(cls, text: str) -> "Script":
        """The same answer to every request."""
        return cls.of_answers([Answer((text,))])

    @classmethod
    def of_answers(cls, answers: Sequence[Answer], end: End = "last") -> "Script":
        """The turns of every session."""
        return cls((Rule(tuple(answers)),), end)
