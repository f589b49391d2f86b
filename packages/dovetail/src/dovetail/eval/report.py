"""The report of an evaluation: a terminal table, JSON, and an HTML page."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.eval.metrics import PassMetrics, TaskResult
from dovetail.eval.target import EvalTarget
from dovetail.eval.tools import can_contain_tools
from dovetail.watch.report import FINDING_DESCRIPTIONS
from dovetail_verify.html_page import render_template

UNKNOWN_VALUE = "unknown"


@dataclass(frozen=True)
class MetricRow:
    """A row of the table: its name, its meaning, and how to format a pass."""

    name: str
    description: str
    format: Callable[[PassMetrics], str]


METRIC_ROWS: tuple[MetricRow, ...] = (
    MetricRow(
        "tasks solved",
        "the final files are as expected",
        lambda one: f"{one.solved_tasks} of {len(one.done)}",
    ),
    MetricRow("requests", "requests sent to the model", lambda one: f"{one.total_requests:,}"),
    MetricRow("tool calls", "calls that the agent received", lambda one: f"{one.calls.made:,}"),
    MetricRow(
        "  with valid JSON",
        "the arguments are valid JSON",
        lambda one: _format_share(one.calls.valid_json, one.calls.made),
    ),
    MetricRow(
        "  of a known tool",
        "the name is a tool of the request",
        lambda one: _format_share(one.calls.known_tool, one.calls.made),
    ),
    MetricRow(
        "  matching the schema",
        "the arguments match the tool's schema",
        lambda one: _format_share(one.calls.fit_schema, one.calls.made),
    ),
    MetricRow(
        "  parallel", "in a response with other calls", lambda one: f"{one.calls.together:,}"
    ),
    MetricRow(
        "calls left in text",
        "calls of the model that the server did not parse: no tool ran",
        lambda one: f"{one.calls.left_in_text:,}",
    ),
    MetricRow(
        "exact turns",
        "prompts that begin with the previous prompt and response, token for token",
        lambda one: _format_exact_turns(one),
    ),
    MetricRow(
        "prompt tokens",
        "total of a task's prompts, on average",
        lambda one: _format_tokens_per_task(one.prefixes.prompt, one),
    ),
    MetricRow(
        "  computed",
        "not cached, by the server's own count",
        lambda one: _format_tokens_per_task(one.prefixes.computed, one),
    ),
    MetricRow(
        "  re-prefilled",
        "of these, tokens that are not new in their prompt",
        lambda one: _format_recomputed(one),
    ),
    MetricRow("time to first token", "median", lambda one: _format_seconds(one.times.first)),
    MetricRow(
        "call to tool start",
        "median, from a call's last byte to the moment when an agent can run it",
        lambda one: _format_seconds(one.times.idle),
    ),
    MetricRow(
        "tool start to stream end",
        "median; time gained by an agent that does not wait for the end",
        lambda one: _format_seconds(one.times.ahead),
    ),
    MetricRow(
        "protocol errors",
        "failed streams, rejected requests, duplicate call ids",
        lambda one: f"{len(one.faults):,}",
    ),
)


def format_value(row: MetricRow, one: PassMetrics) -> str:
    """Format a row for a pass. A pass that was rejected only has errors."""
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


_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s$))")
_HEADLINE_ROWS = ("tasks solved", "exact turns", "re-prefilled")


def render_terminal(target: EvalTarget, passes: Sequence[PassMetrics]) -> RenderableType:
    """Render the report for a terminal."""
    lines = Table(show_edge=False, pad_edge=False, header_style="bold")
    lines.add_column("")
    for one in passes:
        lines.add_column(one.name, justify="right", overflow="fold")
    for row in METRIC_ROWS:
        lines.add_row(Text(row.name), *(Text(format_value(row, one)) for one in passes))
    parts: list[RenderableType] = [lines]
    for title, notes in build_notes(target, passes):
        parts += [Text(), Text(title, style="bold"), *(Text(f"  {line}") for line in notes)]
    return Group(*parts)


def build_notes(target: EvalTarget, passes: Sequence[PassMetrics]) -> list[tuple[str, list[str]]]:
    """Return explanations of the numbers, grouped under titles."""
    sections = [
        ("Rejected", [f"{one.name}: {one.refused}" for one in passes if one.refused]),
        ("Tools", [line for one in passes for line in _missing_tool_notes(one)]),
        ("Not solved", _unsolved_notes(passes)),
        ("Why prefixes broke", [line for one in passes for line in _prefix_break_notes(one)]),
        ("Protocol errors", [f"{one.name}: {fault}" for one in passes for fault in one.faults]),
        ("Unknown", _unknown_notes(target, passes)),
    ]
    return [(title, lines) for title, lines in sections if lines]


def to_report_json(target: EvalTarget, passes: Sequence[PassMetrics]) -> dict[str, Any]:
    """Return the report as JSON values. Unknown values are null."""
    pass_fields: list[dict[str, Any]] = msgspec.to_builtins(list(passes))
    for one, fields in zip(passes, pass_fields, strict=True):
        fields |= {"tasks_solved": one.solved_tasks, "requests": one.total_requests}
        fields["prefixes"]["unknown"] = one.prefixes.unknown_prompts
    return {
        "server": str(target.endpoint),
        "model": target.model,
        "engine": target.engine,
        "engine_why": target.engine_reason,
        "tokenizer": target.reference.origin or None,
        "faults": sum(len(one.faults) for one in passes),
        "passes": pass_fields,
    }


def render_html(target: EvalTarget, passes: Sequence[PassMetrics]) -> str:
    """Render the report as a page."""
    return render_template(
        "eval_report.html",
        package="dovetail.eval",
        target=target,
        names=[one.name for one in passes],
        headline=_headline(passes),
        metrics=[
            (_keep_spacing(row.name), _row_values(row, passes), row.description)
            for row in METRIC_ROWS
        ],
        tasks=[_task_results(at, passes) for at in range(_max_tasks(passes))],
        sections=build_notes(target, passes),
    )


def _headline(passes: Sequence[PassMetrics]) -> list[tuple[str, str]]:
    """Return the key figures: without Dovetail, and with it over the first API."""
    compared = [next((one for one in passes if one.dovetail == on), None) for on in (False, True)]
    rows = [row for row in METRIC_ROWS if row.name.strip() in _HEADLINE_ROWS]
    return [
        (_keep_spacing(format_value(row, one)), f"{row.name.strip()}, {one.name}")
        for row in rows
        for one in compared
        if one is not None
    ]


def _row_values(row: MetricRow, passes: Sequence[PassMetrics]) -> list[str]:
    return [_keep_spacing(format_value(row, one)) for one in passes]


def _keep_spacing(text: str) -> str:
    """Replace spaces that HTML must preserve: indents, and those between numbers and units."""
    return _SPACE_BEFORE_UNIT.sub("\u00a0", text.replace("  ", "\u2003"))


def _task_results(at: int, passes: Sequence[PassMetrics]) -> tuple[str, list[TaskResult | None]]:
    """Return a task's name and its result in each pass, None where it was not run."""
    results = [one.done[at] if at < len(one.done) else None for one in passes]
    return next(result.task for result in results if result is not None), results


def _max_tasks(passes: Sequence[PassMetrics]) -> int:
    return max((len(one.done) for one in passes), default=0)


def _missing_tool_notes(one: PassMetrics) -> list[str]:
    """Return a note if the tools are not in the prompt: some templates silently omit them."""
    tokens = one.prefixes.opening
    if tokens is None or can_contain_tools(tokens):
        return []
    note = f"{one.name}: a first prompt has only {tokens:,} tokens, so it does not contain the"
    return [f"{note} tools; the model's template may not render them"]


def _unsolved_notes(passes: Sequence[PassMetrics]) -> list[str]:
    """List the tasks that are not solved. Passes with the same failure share a line."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for one in passes:
        for line in one.done:
            if not line.solved:
                found.setdefault((line.task, line.why), {})[one.name] = None
    return [
        f"{task} ({'; '.join(names) if len(names) < len(passes) else 'every pass'}): {why}"
        for (task, why), names in sorted(found.items(), key=lambda item: item[0][0])
    ]


def _prefix_break_notes(one: PassMetrics) -> list[str]:
    """List each cause with its count, and its cost with a perfect cache."""
    meanings: dict[str, str] = dict(FINDING_DESCRIPTIONS.items())
    lines = [
        f"{one.name}: {count} × {meanings.get(code, code)}"
        for code, count in one.prefixes.causes.items()
    ]
    if one.prefixes.needless:
        lines.append(
            f"{one.name}: {one.prefixes.needless:,} tokens are re-prefilled even with a perfect "
            "cache; exact turns avoid this"
        )
    return lines


def _unknown_notes(target: EvalTarget, passes: Sequence[PassMetrics]) -> list[str]:
    """List why numbers are unknown, and how to get them."""
    lines = []
    run = [one for one in passes if one.total_requests and not one.refused]
    if any(one.prefixes.computed is None for one in run):
        lines.append(
            "cached tokens: the server does not report them (start vLLM with "
            "--enable-prompt-tokens-details, SGLang with --enable-cache-report)"
        )
    if any(one.prefixes.unknown_prompts for one in run):
        lines.append(
            "exact turns: the server's token counts differ from those of the model's tokenizer and "
            "template"
            if target.reference.has_tokenizer
            else "exact turns: the model's tokenizer was not found (set --tokenizer)"
        )
    return lines
