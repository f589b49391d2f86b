"""One client tries to use all resources of a server."""

import starvation
from tools.attacks.scenario import Effort, Outcome, judge

__all__ = ["few_open_files", "large_bodies"]


def large_bodies(effort: Effort) -> Outcome:
    """Bodies that are expensive to decode arrive while other clients stream."""
    results = starvation.large_bodies(streams=effort.scale(30, 10))
    worst = {name: max(one.figures[name] for one in results) for name in results[0].limits}
    gaps = {one.name: one.figures["extra_gap_ms"] for one in results}
    slowdown = max(one.figures["slowdown"] for one in results)
    details = "\n".join(f"{one.name}: {one.figures}" for one in results)
    return judge(results[0].limits, details, **worst, slowdown=slowdown, extra_gaps_ms=gaps)


def few_open_files(effort: Effort) -> Outcome:
    result = starvation.few_open_files()
    return judge(result.limits, str(result.figures), **result.figures)
