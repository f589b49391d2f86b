"""Checks, their outcomes and their results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dovetail_verify.clauses import CLAUSES, Clause

if TYPE_CHECKING:
    from dovetail_verify.target import TargetServer

#: Runs a check on a target. Reports show the returned text if the check passes, such as a count.
CheckFunction = Callable[["TargetServer"], Awaitable[str]]


class CheckOutcome(StrEnum):
    """How a check ended. `error`: no verdict, because the server did not respond."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    ERROR = "error"


class CheckFailed(Exception):
    """The server violated the clause.

    Reports show the last exchange as evidence, unless `sent` and `received` replace it: the fault
    may be visible in an earlier exchange, or in none.
    """

    def __init__(self, message: str, sent: str = "", received: str = "") -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received


class NotApplicable(Exception):
    """The clause cannot be checked on this server; the message states the reason."""


@dataclass(frozen=True)
class Check:
    """One property of a server that is checked.

    The first word of `id` is the API. `why` describes what a user of an agent notices if the check
    fails. `requires` lists the features of the target without which the check does not apply.
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
    """Result of a check. `message` is the reason for a failure, or what a passing check found."""

    check: Check
    outcome: CheckOutcome
    message: str = ""
    sent: str = ""
    received: str = ""
    seconds: float = 0.0


def check(
    id: str, clause: str, *, title: str, why: str, requires: tuple[str, ...] = ()
) -> Callable[[CheckFunction], Check]:
    """Turn a function into a check. The suite runs the checks listed in `CHECKS` of a module."""

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
