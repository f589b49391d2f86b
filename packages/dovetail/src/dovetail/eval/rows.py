"""The lines of the report: what each is called, what it means, and how a pass fills it."""

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.eval.figures import PassMetrics

UNKNOWN_VALUE = "unknown"


@dataclass(frozen=True)
class MetricRow:
    """A line of the table: what it is called, what it means, and how a pass fills it."""

    name: str
    description: str
    format: Callable[[PassMetrics], str]


METRIC_ROWS: tuple[MetricRow, ...] = (
    MetricRow(
        "tasks solved",
        "the files were as they should be at the end",
        lambda one: f"{one.solved_tasks} of {len(one.done)}",
    ),
    MetricRow("requests", "answers that the model gave", lambda one: f"{one.total_requests:,}"),
    MetricRow("tool calls", "that the agent was given", lambda one: f"{one.calls.made:,}"),
    MetricRow(
        "  with valid JSON",
        "arguments that can be read",
        lambda one: _format_share(one.calls.valid_json, one.calls.made),
    ),
    MetricRow(
        "  of a tool that exists",
        "the name is one of those offered",
        lambda one: _format_share(one.calls.known_tool, one.calls.made),
    ),
    MetricRow(
        "  that fit the schema",
        "arguments as the tool's schema wants them",
        lambda one: _format_share(one.calls.fit_schema, one.calls.made),
    ),
    MetricRow("  made together", "in an answer with others", lambda one: f"{one.calls.together:,}"),
    MetricRow(
        "calls left in the text",
        "the model made them, the server did not see them: no tool ran",
        lambda one: f"{one.calls.left_in_text:,}",
    ),
    MetricRow(
        "turns exact",
        "a prompt and its answer, token for token the beginning of the next prompt",
        lambda one: _format_exact_turns(one),
    ),
    MetricRow(
        "prompt tokens",
        "in all prompts of a task, on average",
        lambda one: _format_tokens_per_task(one.prefixes.prompt, one),
    ),
    MetricRow(
        "  computed",
        "not found in the server's cache, as it counts",
        lambda one: _format_tokens_per_task(one.prefixes.computed, one),
    ),
    MetricRow(
        "  computed again",
        "of these, tokens that were there before: all that is not new in its prompt",
        lambda one: _format_recomputed(one),
    ),
    MetricRow(
        "first word", "median, from the request", lambda one: _format_seconds(one.times.first)
    ),
    MetricRow(
        "call to tool start",
        "median, from a call's last byte to when an agent can know that it is complete",
        lambda one: _format_seconds(one.times.idle),
    ),
    MetricRow(
        "tool start to stream end",
        "median; what an agent gains that does not wait for the end",
        lambda one: _format_seconds(one.times.ahead),
    ),
    MetricRow(
        "protocol faults",
        "broken streams, refusals, calls that share an id",
        lambda one: f"{len(one.faults):,}",
    ),
)


def format_value(row: MetricRow, one: PassMetrics) -> str:
    """A line of a pass. One that was refused has faults, and nothing else to tell."""
    return "-" if one.refused and row is not METRIC_ROWS[-1] else row.format(one)


def _format_share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.0f} %)" if of else "-"


def _format_exact_turns(one: PassMetrics) -> str:
    prefixes = one.prefixes
    known = prefixes.exact + prefixes.inexact
    if not known:
        return UNKNOWN_VALUE if prefixes.later else "-"
    rest = f", {prefixes.unknown_prompts} {UNKNOWN_VALUE}" if prefixes.unknown_prompts else ""
    return f"{prefixes.exact} of {known} ({100 * prefixes.exact / known:.0f} %){rest}"


def _format_tokens_per_task(tokens: int | None, one: PassMetrics) -> str:
    if tokens is None or not one.done:
        return UNKNOWN_VALUE
    return f"{tokens / len(one.done):,.0f}"


def _format_recomputed(one: PassMetrics) -> str:
    prefixes = one.prefixes
    if prefixes.again is None:
        return UNKNOWN_VALUE if prefixes.later else "-"
    rest = prefixes.later - prefixes.again_of
    return _format_tokens_per_task(prefixes.again, one) + (
        f", {rest} {UNKNOWN_VALUE}" if rest else ""
    )


def _format_seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
