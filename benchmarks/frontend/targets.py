"""Targets, measurements, and whether the targets are met."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.frontend.cases import IN_STEP, PACED, SATURATED, Case
from benchmarks.frontend.findings import Findings
from benchmarks.frontend.requests import APIS

OURS, THEIRS, STEPS = "dovetail", "dynamo", "dovetail, steps"
HALF, QUARTER, FLAT = 0.5, 0.25, 1.1
IN_CALL = 0.8  # of an engine behind the step protocol
ADDED = 1.0  # milliseconds
BEHIND = 1  # tokens
IN_CALLS = frozenset({"call-paced", "call-steps", "call-fast", "call-4500"})
RATED = ("plain", "plain-paced", *IN_CALLS)


@dataclass(frozen=True)
class Target:
    """A target. `measured` is text for the table; `holds` is None without a measurement."""

    wanted: str
    measured: str
    holds: bool | None


def targets(found: Findings) -> Iterator[Target]:
    """Yield all targets, in order."""
    for case in PACED:
        yield _ratio(found, case, HALF)
    for case in IN_STEP:
        yield _steps(found, case, IN_CALL if case.part == "call-steps" else HALF)
    yield _added(found)
    for case in SATURATED:
        if case.part in RATED and case.streams > 1:
            yield _ratio(found, case, QUARTER if case.part in IN_CALLS else HALF)
    yield _flat(found)
    yield _first_argument(found)
    yield _many(found)


def _ratio(found: Findings, case: Case, limit: float) -> Target:
    wanted = f"{case.title}: at most {limit} of Dynamo's"
    ratios = {api: found.costs.ratio(OURS, THEIRS, case.name, api) for api in APIS}
    return _target(wanted, {api: r for api, r in ratios.items() if r is not None}, limit)


def _steps(found: Findings, case: Case, limit: float) -> Target:
    wanted = f"step protocol, {case.title}: at most {limit} of Dynamo's"
    ratios = {api: found.costs.ratio(STEPS, THEIRS, case.name, api) for api in APIS}
    return _target(wanted, {api: r for api, r in ratios.items() if r is not None}, limit)


def _added(found: Findings) -> Target:
    added = {api: found.added(OURS, api) for api in APIS}
    wanted = f"time between tokens, p99: at most {ADDED:g} ms over the engine's"
    return _target(wanted, {api: a for api, a in added.items() if a is not None}, ADDED, " ms")


def _flat(found: Findings) -> Target:
    grown = {api: found.costs.growth(OURS, api) for api in APIS}
    wanted = f"a call's tokens from 20k to 85k over those from 1k to 4.5k: at most {FLAT}"
    return _target(wanted, {api: g for api, g in grown.items() if g is not None}, FLAT)


def _first_argument(found: Findings) -> Target:
    behind = {api: float(n) for (server, api), n in found.behind.items() if server == OURS}
    wanted = f"a value's first byte: at most {BEHIND} token after it starts"
    return _target(wanted, behind, BEHIND, form=".0f")


def _many(found: Findings) -> Target:
    measurements = [many for server, _, many in (*found.slow, *found.unread) if server == OURS]
    if not measurements:
        return Target("many slow streams: nothing lost", "not measured", None)
    largest = max(measurements, key=lambda many: many.streams)
    lost = sum(many.lost for many in measurements)
    measured = f"{lost} lost, {largest.kilobytes:.0f} KB per stream"
    return Target(f"{largest.streams:,} slow streams: nothing lost", measured, lost == 0)


def _target(
    wanted: str, values: dict[str, float], limit: float, unit: str = "", form: str = ".2f"
) -> Target:
    if not values:
        return Target(wanted, "not measured", None)
    measured = ", ".join(f"{api} {value:{form}}{unit}" for api, value in values.items())
    return Target(wanted, measured, all(value <= limit for value in values.values()))
