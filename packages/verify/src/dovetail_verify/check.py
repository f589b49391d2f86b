"""What a check is, and how it ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dovetail_verify.clauses import CLAUSES, Clause

if TYPE_CHECKING:
    from dovetail_verify.target import TargetServer

#: Does its work on a stage. What it gives back is shown beside a pass: a figure, what was seen.
CheckFunction = Callable[["TargetServer"], Awaitable[str]]


class CheckOutcome(StrEnum):
    """How a check ended. An `error` is one that could not be judged: the server did not answer."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    ERROR = "error"


class CheckFailed(Exception):
    """The server broke the clause. What was sent and came is that of the last exchange.

    Where another exchange shows the fault, or none does, `sent` and `came` say it.
    """

    def __init__(self, message: str, sent: str = "", received: str = "") -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received


class NotApplicable(Exception):
    """The clause cannot be judged here, and why."""


@dataclass(frozen=True)
class Check:
    """One question to a server. `why` says what a user sees when the answer is wrong.

    The first word of the id is the API. `needs` are facts of the stage without which the check
    does not apply.
    """

    id: str
    clause: Clause
    title: str
    why: str
    run: CheckFunction
    requires: frozenset[str] = frozenset()

    @property
    def api(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class CheckResult:
    """What a check found. `note` is its message: why it failed, or what it saw."""

    check: Check
    outcome: CheckOutcome
    message: str = ""
    sent: str = ""
    received: str = ""
    seconds: float = 0.0


def check(
    id: str, clause: str, *, title: str, why: str, requires: tuple[str, ...] = ()
) -> Callable[[CheckFunction], Check]:
    """Makes a check of a function. It has to be named in its module's `CHECKS` to be run."""

    def made(run: CheckFunction) -> Check:
        return Check(id, CLAUSES[clause], title, why, run, frozenset(requires))

    return made


def require(condition: object, message: str, *, sent: str = "", received: str = "") -> None:
    """Fails the check unless it is true."""
    if not condition:
        raise CheckFailed(message, sent, received)


def pluralize(number: int, noun: str) -> str:
    """So many of a thing, for what a check says of itself."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
