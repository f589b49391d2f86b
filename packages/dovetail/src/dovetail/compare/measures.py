"""The measures of a comparison: how they are read from a run and how their values are formatted."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from dovetail.compare.records import RunRecord

MeasureUnit = Literal["count", "tokens", "seconds", "share"]


class Measure(msgspec.Struct, frozen=True):
    """A value of a run that is compared, per task.

    `read`: returns the value of a run, or None if the run does not have it.
    """

    name: str
    description: str
    unit: MeasureUnit
    read: Callable[[RunRecord], float | None]


#: Declared before any run: the measure that a comparison is about. All others are descriptive.
PRIMARY_MEASURE = Measure(
    "tool calls", "calls per run, of all tools", "count", lambda run: run.total_tool_calls
)

_FIXED_MEASURES: tuple[Measure, ...] = (
    Measure("solved", "share of runs that pass the check", "share", lambda run: run.solved),
    Measure("turns", "requests to the model", "count", lambda run: run.turns),
    Measure("prompt tokens", "prompts of all requests", "tokens", lambda run: run.prompt_tokens),
    Measure(
        "new tokens",
        "prompt tokens that no earlier prompt had",
        "tokens",
        lambda run: run.new_tokens,
    ),
    Measure(
        "cached tokens",
        "prompt tokens that the engine had cached",
        "tokens",
        lambda run: run.cached_tokens,
    ),
    Measure(
        "re-prefilled tokens",
        "prompt tokens that the engine computed again",
        "tokens",
        lambda run: run.re_prefilled_tokens,
    ),
    Measure("output tokens", "outputs of all responses", "tokens", lambda run: run.output_tokens),
    Measure(
        "reasoning tokens",
        "output tokens inside reasoning",
        "tokens",
        lambda run: run.reasoning_tokens,
    ),
    Measure(
        "time to first token",
        "median of the requests of a run",
        "seconds",
        lambda run: statistics.median(run.ttft_seconds) if run.ttft_seconds else None,
    ),
    Measure("wall time", "of the harness", "seconds", lambda run: run.wall_seconds),
    Measure(
        "truncated outputs",
        "tool results that the harness truncated",
        "count",
        lambda run: run.truncated_outputs,
    ),
    Measure(
        "diagnostics",
        "diagnostics of the server",
        "count",
        lambda run: sum(run.diagnostics.values()),
    ),
)


def list_measures(runs: Iterable[RunRecord]) -> list[Measure]:
    """Return all measures, the primary one first, with one per tool and per diagnostic code."""
    found = list(runs)
    tools = sorted({name for run in found for name in run.tool_calls})
    codes = sorted({code for run in found for code in run.diagnostics})
    return [
        PRIMARY_MEASURE,
        *(_tool_measure(name) for name in tools),
        *_FIXED_MEASURES,
        *(_diagnostic_measure(code) for code in codes),
    ]


def _tool_measure(name: str) -> Measure:
    return Measure(
        f"tool calls: {name}",
        "calls of this tool",
        "count",
        lambda run: run.tool_calls.get(name, 0),
    )


def _diagnostic_measure(code: str) -> Measure:
    return Measure(
        f"diagnostics: {code}",
        "diagnostics of this code",
        "count",
        lambda run: run.diagnostics.get(code, 0),
    )


def format_amount(value: float | None, unit: MeasureUnit, *, signed: bool = False) -> str:
    """Format a value of a measure, or a difference with its sign."""
    if value is None:
        return "-"
    sign = "+" if signed else ""
    match unit:
        case "share":
            return f"{100 * value:{sign}.0f} " + ("points" if signed else "%")
        case "seconds":
            return f"{value:{sign}.3f} s"
        case "tokens":
            return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.1f}"
        case "count":
            return f"{value:{sign},.2f}"


def format_interval(interval: Sequence[float] | None, unit: MeasureUnit) -> str:
    """Format the interval of a difference."""
    if interval is None:
        return "-"
    return " to ".join(format_amount(one, unit, signed=True) for one in interval)


def format_p(value: float | None) -> str:
    """Format a p-value."""
    if value is None:
        return "-"
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
