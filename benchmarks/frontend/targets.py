"""Targets, measurements, and whether the targets are met."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.frontend import embedded
from benchmarks.frontend.cases import IN_STEP, PACED, REMOTE, SATURATED, TURNS, Case
from benchmarks.frontend.findings import Findings
from benchmarks.frontend.requests import APIS
from benchmarks.prepare.inside import TARGET

OURS, THEIRS, STEPS = "dovetail", "dynamo", "dovetail, steps"
HALF, QUARTER, FLAT = 0.5, 0.25, 1.1
OVER_HTTP = 0.6  # of an engine that sends one frame per token and stream
IN_CALL = 0.8  # of an engine behind the step protocol
SAME = 1.0
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
    """Yield the targets of docs/speed.md, in order."""
    yield _embedded(found)
    for case in IN_STEP:
        limit = IN_CALL if case.part == "call-steps" else HALF
        yield _ratio(found, case, limit, STEPS)
    for case in REMOTE:
        yield _ratio(found, case, OVER_HTTP)
    for server in (OURS, STEPS):
        yield _turns(found, server)
    yield _cold(found)
    yield _added(found)
    yield _many(found)


def further_targets(found: Findings) -> Iterator[Target]:
    """Yield the targets of a full run."""
    for case in PACED:
        if case not in REMOTE:
            yield _ratio(found, case, HALF)
    for case in SATURATED:
        if case.part in RATED and case.streams > 1:
            yield _ratio(found, case, QUARTER if case.part in IN_CALLS else HALF)
    yield _flat(found)
    yield _first_argument(found)


def _embedded(found: Findings) -> Target:
    wanted = f"embedded vLLM, with its child process: at most {HALF} of vLLM's API server"
    names = {f"{n} streams": embedded.case_name(n) for n in embedded.STREAMS}
    ratios = {
        title: found.costs.ratio(embedded.OURS, embedded.THEIRS, name, "chat")
        for title, name in names.items()
    }
    return _target(wanted, ratios, HALF)


def _ratio(found: Findings, case: Case, limit: float, server: str = OURS) -> Target:
    protocol = "step protocol, " if server == STEPS else ""
    wanted = f"{protocol}{case.title}: at most {limit} of Dynamo's"
    ratios = {api: found.costs.ratio(server, THEIRS, case.name, api) for api in APIS}
    return _target(wanted, ratios, limit)


def _turns(found: Findings, server: str) -> Target:
    protocol = "step protocol, " if server == STEPS else ""
    wanted = f"{protocol}{TURNS.title}, per request: at most {SAME} of Dynamo's"
    ratios = {api: found.costs.request_ratio(server, THEIRS, TURNS.name, api) for api in APIS}
    return _target(wanted, ratios, SAME)


def _cold(found: Findings) -> Target:
    wanted = f"new conversation of {TARGET:,} tokens: at most {SAME} of Dynamo's"
    pairs = {api: (found.cold.get((OURS, api)), found.cold.get((THEIRS, api))) for api in APIS}
    ratios = {api: ours / theirs for api, (ours, theirs) in pairs.items() if ours and theirs}
    return _target(wanted, ratios, SAME)


def _added(found: Findings) -> Target:
    added = {api: found.added(OURS, api) for api in APIS}
    wanted = f"time between tokens, p99: at most {ADDED:g} ms over the engine's"
    return _target(wanted, added, ADDED, " ms")


def _flat(found: Findings) -> Target:
    grown = {api: found.costs.growth(OURS, api) for api in APIS}
    wanted = f"a call's tokens from 20k to 85k over those from 1k to 4.5k: at most {FLAT}"
    return _target(wanted, grown, FLAT)


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
    measured = f"{lost} lost, {largest.kilobytes:.0f} KB per stream, p99 {largest.p99:.0f} ms"
    return Target(f"{largest.streams:,} slow streams: nothing lost", measured, lost == 0)


def _target(
    wanted: str,
    values: Mapping[str, float | None],
    limit: float,
    unit: str = "",
    form: str = ".2f",
) -> Target:
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return Target(wanted, "not measured", None)
    measured = ", ".join(f"{name} {value:{form}}{unit}" for name, value in known.items())
    return Target(wanted, measured, all(value <= limit for value in known.values()))
