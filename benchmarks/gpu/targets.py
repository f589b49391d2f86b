"""The targets of a run: what was measured, and whether it meets them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.gpu.findings import Run, ratio
from benchmarks.gpu.published import DECODE, TTFT

STRIPPED = 1.02  # C over A
ADDED = 5.0  # milliseconds
REWRITTEN = 1.05  # D and F, the larger relative to the smaller
NEXT_TURN = 1.1  # D and F over A
THROUGH = 0.97  # of the engine's tokens per second
FASTER = 5.0  # times the tokens per second of one stream that were known before
WARM = ("A", "C", "D", "F")  # cases whose prompt is cached but for its end


@dataclass(frozen=True)
class Target:
    """A target. `measured` is text for the table; `holds` is None without a measurement."""

    wanted: str
    measured: str
    holds: bool | None


def targets(run: Run) -> Iterator[Target]:
    """Yield all targets."""
    took = {case: run.middle(case, "client_ms") for case in WARM}
    yield _maximum_target(
        f"C within {STRIPPED}x of A", STRIPPED, {"C / A": ratio(took["C"], took["A"])}
    )
    added = {case: run.added(case) for case in WARM}
    wanted = f"the server adds at most {ADDED:g} ms to the TTFT of the engine"
    yield _maximum_target(wanted, ADDED, added, " ms")
    published = TTFT["C"]
    below = {case: value for case in ("A", "C") if (value := took[case]) is not None}
    holds = all(value < published for value in below.values())
    yield _target(f"A and C below the published {published:g} ms", below, holds, " ms")
    apart = [value for case in ("D", "F") if (value := took[case]) is not None]
    both = ratio(max(apart), min(apart)) if len(apart) == 2 else None
    yield _maximum_target(f"D = F, within {REWRITTEN}x", REWRITTEN, {"larger / smaller": both})
    over = {f"{case} / A": ratio(took[case], took["A"]) for case in ("D", "F")}
    yield _maximum_target(f"D and F within {NEXT_TURN}x of A", NEXT_TURN, over)
    yield _through(run)
    yield _faster(run)


def _through(run: Run) -> Target:
    rates = {(row["streams"], row["via"]): row["median"] for row in run.rows("I")}
    shares = {
        f"{via} at {streams}": ratio(rate, rates.get((streams, "alone")))
        for (streams, via), rate in rates.items()
        if via != "alone"
    }
    wanted = f"tokens per second through the server at least {THROUGH}x of the engine alone"
    return _minimum_target(wanted, THROUGH, shares)


def _faster(run: Run) -> Target:
    known = DECODE[1]
    one = {f"{row['via']}": row["median"] / known for row in run.rows("I") if row["streams"] == 1}
    return _minimum_target(
        f"one stream at least {FASTER:g}x of {known:g} tokens per second", FASTER, one
    )


def _maximum_target(
    wanted: str, limit: float, values: Mapping[str, float | None], unit: str = ""
) -> Target:
    known = {name: value for name, value in values.items() if value is not None}
    return _target(wanted, known, all(value <= limit for value in known.values()), unit)


def _minimum_target(wanted: str, limit: float, values: Mapping[str, float | None]) -> Target:
    known = {name: value for name, value in values.items() if value is not None}
    return _target(wanted, known, all(value >= limit for value in known.values()))


def _target(wanted: str, known: Mapping[str, float], holds: bool, unit: str = "") -> Target:
    if not known:
        return Target(wanted, "not measured", None)
    form = ".1f" if unit else ".3f"
    measured = ", ".join(f"{name} {value:{form}}{unit or 'x'}" for name, value in known.items())
    return Target(wanted, measured, holds)
