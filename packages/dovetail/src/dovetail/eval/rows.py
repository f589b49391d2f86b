"""The lines of the report: what each is called, what it means, and how a pass fills it."""

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.eval.figures import Figures

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """A line of the table: what it is called, what it means, and how a pass fills it."""

    name: str
    meaning: str
    value: Callable[[Figures], str]


ROWS: tuple[Row, ...] = (
    Row(
        "tasks solved",
        "the files were as they should be at the end",
        lambda one: f"{one.solved} of {len(one.done)}",
    ),
    Row("requests", "answers that the model gave", lambda one: f"{one.requests:,}"),
    Row("tool calls", "that the agent was given", lambda one: f"{one.calls.made:,}"),
    Row(
        "  with valid JSON",
        "arguments that can be read",
        lambda one: _share(one.calls.valid_json, one.calls.made),
    ),
    Row(
        "  of a tool that exists",
        "the name is one of those offered",
        lambda one: _share(one.calls.known_tool, one.calls.made),
    ),
    Row(
        "  that fit the schema",
        "arguments as the tool's schema wants them",
        lambda one: _share(one.calls.fit_schema, one.calls.made),
    ),
    Row("  made together", "in an answer with others", lambda one: f"{one.calls.together:,}"),
    Row(
        "calls left in the text",
        "the model made them, the server did not see them: no tool ran",
        lambda one: f"{one.calls.left_in_text:,}",
    ),
    Row(
        "turns exact",
        "a prompt and its answer, token for token the beginning of the next prompt",
        lambda one: _exact(one),
    ),
    Row(
        "prompt tokens",
        "in all prompts of a task, on average",
        lambda one: _each(one.prefixes.prompt, one),
    ),
    Row(
        "  computed",
        "not found in the server's cache, as it counts",
        lambda one: _each(one.prefixes.computed, one),
    ),
    Row(
        "  computed again",
        "of these, tokens that were there before: all that is not new in its prompt",
        lambda one: _again(one),
    ),
    Row("first word", "median, from the request", lambda one: _seconds(one.times.first)),
    Row(
        "call to tool start",
        "median, from a call's last byte to when an agent can know that it is complete",
        lambda one: _seconds(one.times.idle),
    ),
    Row(
        "tool start to stream end",
        "median; what an agent gains that does not wait for the end",
        lambda one: _seconds(one.times.ahead),
    ),
    Row(
        "protocol faults",
        "broken streams, refusals, calls that share an id",
        lambda one: f"{len(one.faults):,}",
    ),
)


def value_of(row: Row, one: Figures) -> str:
    """A line of a pass. One that was refused has faults, and nothing else to tell."""
    return "-" if one.refused and row is not ROWS[-1] else row.value(one)


def _share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.0f} %)" if of else "-"


def _exact(one: Figures) -> str:
    prefixes = one.prefixes
    known = prefixes.exact + prefixes.inexact
    if not known:
        return UNKNOWN if prefixes.later else "-"
    rest = f", {prefixes.unknown} {UNKNOWN}" if prefixes.unknown else ""
    return f"{prefixes.exact} of {known} ({100 * prefixes.exact / known:.0f} %){rest}"


def _each(tokens: int | None, one: Figures) -> str:
    if tokens is None or not one.done:
        return UNKNOWN
    return f"{tokens / len(one.done):,.0f}"


def _again(one: Figures) -> str:
    prefixes = one.prefixes
    if prefixes.again is None:
        return UNKNOWN if prefixes.later else "-"
    rest = prefixes.later - prefixes.again_of
    return _each(prefixes.again, one) + (f", {rest} {UNKNOWN}" if rest else "")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
