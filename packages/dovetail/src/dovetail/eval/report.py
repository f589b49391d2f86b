"""The numbers for people and for programs: a table, JSON, and one page of HTML."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.eval.figures import PassMetrics, TaskResult
from dovetail.eval.rows import METRIC_ROWS, MetricRow, format_value
from dovetail.eval.target import EvalTarget
from dovetail.eval.tools import can_contain_tools
from dovetail.watch.report import FINDING_DESCRIPTIONS
from dovetail_verify.html_page import (
    BadgeTone,
    Content,
    Html,
    KeyFigure,
    PageSection,
    render_badge,
    render_definitions,
    render_figures,
    render_page,
    render_table,
)

_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|s$))")
_HEADLINE_ROWS = ("tasks solved", "turns exact", "computed again")


def render_terminal(subject: EvalTarget, passes: Sequence[PassMetrics]) -> RenderableType:
    """The report for a terminal."""
    lines = Table(show_edge=False, pad_edge=False, header_style="bold")
    lines.add_column("")
    for one in passes:
        lines.add_column(one.name, justify="right", overflow="fold")
    for row in METRIC_ROWS:
        lines.add_row(Text(row.name), *(Text(format_value(row, one)) for one in passes))
    parts: list[RenderableType] = [lines]
    for title, said in build_notes(subject, passes):
        parts += [Text(), Text(title, style="bold"), *(Text(f"  {line}") for line in said)]
    return Group(*parts)


def build_notes(subject: EvalTarget, passes: Sequence[PassMetrics]) -> list[tuple[str, list[str]]]:
    """What numbers do not say, under its titles."""
    found = [
        ("No answer", [f"{one.name}: {one.refused}" for one in passes if one.refused]),
        ("Tools", [line for one in passes for line in _missing_tool_notes(one)]),
        ("Not solved", _unsolved_notes(passes)),
        ("Why prefixes broke", [line for one in passes for line in _prefix_break_notes(one)]),
        ("Protocol faults", [f"{one.name}: {fault}" for one in passes for fault in one.faults]),
        ("Unknown", _unknown_notes(subject, passes)),
    ]
    return [(title, said) for title, said in found if said]


def to_report_json(subject: EvalTarget, passes: Sequence[PassMetrics]) -> dict[str, Any]:
    """The report for programs. What is unknown is null."""
    told: list[dict[str, Any]] = msgspec.to_builtins(list(passes))
    for one, fields in zip(passes, told, strict=True):
        fields |= {"tasks_solved": one.solved_tasks, "requests": one.total_requests}
        fields["prefixes"]["unknown"] = one.prefixes.unknown_prompts
    return {
        "server": str(subject.endpoint),
        "model": subject.model,
        "engine": subject.engine,
        "engine_why": subject.engine_reason,
        "tokenizer": subject.reference.origin or None,
        "faults": sum(len(one.faults) for one in passes),
        "passes": told,
    }


def render_html(subject: EvalTarget, passes: Sequence[PassMetrics]) -> str:
    """The report as a page."""
    names = [one.name for one in passes]
    numbers = render_table(
        ["", *names, "what it is"],
        [
            [_keep_spacing(row.name), *_row_values(row, passes), row.description]
            for row in METRIC_ROWS
        ],
    )
    tasks = render_table(
        ["task", *names], [_task_row(at, passes) for at in range(_max_tasks(passes))]
    )
    about = render_definitions(
        [
            ("server", str(subject.endpoint)),
            ("model", subject.model),
            ("Dovetail speaks to it as", f"{subject.engine}: {subject.engine_reason}"),
            ("off", "the agent asks the server's own Chat Completions"),
            ("on", "the agent asks a Dovetail before the same server, over the API named"),
        ]
    )
    sections = [
        PageSection("Figures", [_render_headline(passes), numbers]),
        PageSection("Tasks", [tasks]),
    ]
    sections += [PageSection(title, said) for title, said in build_notes(subject, passes)]
    sections.append(PageSection("What was tried", [about]))
    return render_page(f"Acceptance of {subject.model}", sections, str(subject.endpoint))


def _render_headline(passes: Sequence[PassMetrics]) -> Html:
    """What most people look for: without Dovetail, and with it over the first API."""
    compared = [next((one for one in passes if one.dovetail == on), None) for on in (False, True)]
    rows = [row for row in METRIC_ROWS if row.name.strip() in _HEADLINE_ROWS]
    return render_figures(
        KeyFigure(_keep_spacing(format_value(row, one)), f"{row.name.strip()}, {one.name}")
        for row in rows
        for one in compared
        if one is not None
    )


def _row_values(row: MetricRow, passes: Sequence[PassMetrics]) -> list[str]:
    return [_keep_spacing(format_value(row, one)) for one in passes]


def _keep_spacing(text: str) -> str:
    """Indents that HTML keeps, and numbers that stay with their units."""
    return _SPACE_BEFORE_UNIT.sub("\u00a0", text.replace("  ", "\u2003"))


def _task_row(at: int, passes: Sequence[PassMetrics]) -> list[Content]:
    lines = [one.done[at] if at < len(one.done) else None for one in passes]
    name = next(line.task for line in lines if line is not None)
    return [name, *(_task_badge(line) for line in lines)]


def _task_badge(done: TaskResult | None) -> Content:
    if done is None:
        return render_badge("not run", "dim")
    tone: BadgeTone = "good" if done.solved else "warn"
    return render_badge(
        f"{'solved' if done.solved else 'not solved'}, {done.requests} requests", tone
    )


def _max_tasks(passes: Sequence[PassMetrics]) -> int:
    return max((len(one.done) for one in passes), default=0)


def _missing_tool_notes(one: PassMetrics) -> list[str]:
    """Some templates have no place for tools, and some servers say nothing about it."""
    tokens = one.prefixes.opening
    if tokens is None or can_contain_tools(tokens):
        return []
    said = f"{one.name}: a first prompt has {tokens:,} tokens, so the tools are not in it"
    return [f"{said}: the model does not know them (its template may not show any)"]


def _unsolved_notes(passes: Sequence[PassMetrics]) -> list[str]:
    """Tasks that are not solved. Passes that failed in the same way share a line."""
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
    """Each cause with its number, and what it would have cost with a perfect cache."""
    meanings: dict[str, str] = dict(FINDING_DESCRIPTIONS.items())
    lines = [
        f"{one.name}: {count} × {meanings.get(code, code)}"
        for code, count in one.prefixes.causes.items()
    ]
    if one.prefixes.needless:
        lines.append(
            f"{one.name}: {one.prefixes.needless:,} tokens in all that exact turns would not have "
            "computed, however good the cache"
        )
    return lines


def _unknown_notes(subject: EvalTarget, passes: Sequence[PassMetrics]) -> list[str]:
    """Why something is not known, and what would make it known."""
    lines = []
    run = [one for one in passes if one.total_requests and not one.refused]
    if any(one.prefixes.computed is None for one in run):
        lines.append(
            "the server does not say how much of a prompt it had in its cache (vLLM: "
            "--enable-prompt-tokens-details, SGLang: --enable-cache-report)"
        )
    if any(one.prefixes.unknown_prompts for one in run):
        lines.append(
            "which turns were exact: its prompts and answers have other numbers of tokens than "
            "the model's tokenizer and template give, so nothing is claimed of them"
            if subject.reference.has_tokenizer
            else "which turns were exact: no tokenizer of the model is here (--tokenizer names one)"
        )
    return lines
