"""Checks, their outcomes and their results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dovetail_verify.clauses import CLAUSES, Clause

if TYPE_CHECKING:
    from dovetail_verify.target import TargetServer

#: Runs a check on a target. The returned text is shown where it passes: a figure, what was seen.
CheckFunction = Callable[["TargetServer"], Awaitable[str]]


class CheckOutcome(StrEnum):
    """How a check ended. `error`: it could not be judged, the server did not respond."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    ERROR = "error"


class CheckFailed(Exception):
    """The server broke the clause. The evidence is the last exchange.

    `sent` and `received` replace it where another exchange shows the fault, or none does.
    """

    def __init__(self, message: str, sent: str = "", received: str = "") -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received


class NotApplicable(Exception):
    """The clause cannot be judged on this server, and why."""


@dataclass(frozen=True)
class Check:
    """One property of a server that is checked.

    The first word of `id` is the API. `why` is what a user sees where the check fails. `requires`
    are the features of the target without which the check does not apply.
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
    """Result of a check. `message` is why it failed, or what was seen."""

    check: Check
    outcome: CheckOutcome
    message: str = ""
    sent: str = ""
    received: str = ""
    seconds: float = 0.0


def check(
    id: str, clause: str, *, title: str, why: str, requires: tuple[str, ...] = ()
) -> Callable[[CheckFunction], Check]:
    """Make a check of a function. It runs if `CHECKS` of its module lists it."""

    def decorate(function: CheckFunction) -> Check:
        return Check(id, CLAUSES[clause], title, why, function, frozenset(requires))

    return decorate


def require(condition: object, message: str, *, sent: str = "", received: str = "") -> None:
    """Fail the check unless the condition is true."""
    if not condition:
        raise CheckFailed(message, sent, received)


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
