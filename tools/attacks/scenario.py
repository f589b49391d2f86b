"""What a scenario of `make attack` is, and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Result = Literal["passed", "FAILED", "skipped"]


@dataclass(frozen=True)
class Effort:
    """How much a scenario does.

    seed: Determines every random choice of a scenario.
    quick: Run the small form.
    histories: Number of crash histories.
    """

    seed: int
    quick: bool = False
    histories: int = 500

    def scale(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Outcome:
    """The outcome of a scenario.

    measured: What was measured, by name.
    limits: The maximum of a measurement, by name.
    details: What a reader of a failure needs, in full.
    """

    result: Result
    measured: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    details: str = ""


@dataclass(frozen=True)
class Scenario:
    """An attack and the promise that it must not break.

    name: Used by `--only`.
    promise: What holds, as a sentence without its period.
    run: Carries the attack out, in a process of its own.
    limit_seconds: The process is killed after this time, and the scenario has failed. With more
        histories than by default it has more time, in proportion.
    """

    name: str
    promise: str
    run: Callable[[Effort], Outcome]
    limit_seconds: float = 300.0


def judge(limits: Mapping[str, float], details: str = "", **measured: Any) -> Outcome:
    """Return an outcome that has passed if no measurement exceeds its limit."""
    passed = all(measured[name] <= limit for name, limit in limits.items())
    return Outcome("passed" if passed else "FAILED", measured, limits, details)
