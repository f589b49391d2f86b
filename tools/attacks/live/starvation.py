"""One client tries to use all resources of a server."""

from collections.abc import Callable

import starvation
from starvation import LARGE_BODIES, ScenarioResult
from tools.attacks.scenario import Effort, Outcome, judge

__all__ = ["LARGE_BODIES", "few_open_files", "large_body"]


def large_body(name: str) -> Callable[[Effort], Outcome]:
    def run(effort: Effort) -> Outcome:
        return _outcome(starvation.large_bodies(name, effort.scale(30, 10)))

    return run


def few_open_files(effort: Effort) -> Outcome:
    return _outcome(starvation.few_open_files())


def _outcome(result: ScenarioResult) -> Outcome:
    return judge(result.limits, str(result.figures), **result.figures)
