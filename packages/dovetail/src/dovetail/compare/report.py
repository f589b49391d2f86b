"""The report of a comparison: a terminal table, JSON, and an HTML page."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.compare.comparison import DIFFERENT, MeasureComparison, compare_measures
from dovetail.compare.measures import format_amount, format_interval, format_p
from dovetail.compare.pairing import (
    DroppedPair,
    RequestDifferenceGroup,
    TaskComparison,
    compare_tasks,
    group_differences,
    latest_runs,
    list_dropped_pairs,
)
from dovetail.compare.plots import PlotsUnavailable, render_plots
from dovetail.compare.power import DEFAULT_ALPHA, DEFAULT_POWER
from dovetail.compare.records import Experiment, RunRecord, pair_runs
from dovetail.compare.statistics import DEFAULT_BOOTSTRAP_RESAMPLES
from dovetail_verify.html_page import render_template

SCHEMA = "dovetail.comparison/1"
_MAX_TERMINAL_LINES = 20
_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|s\b|points)|(?<=<) ")
_COLUMNS = (
    "measure",
    "a",
    "b",
    "b - a",
    "95 % interval",
    "d_z",
    "p (sign)",
    "p (permutation)",
    "p (corrected)",
    "verdict",
)
#: A terminal with fewer columns shows only some of the columns of the table.
_MIN_WIDE_TERMINAL = 150
_NARROW_COLUMNS = ("measure", "a", "b", "b - a", "p (corrected)", "verdict")


class ComparisonReport(msgspec.Struct, frozen=True):
    """What an experiment shows.

    `conclusion`: sentences about the primary measure and the other measures.
    `measures`: the primary measure first.
    `a_first`: the number of complete pairs in which a ran before b.
    """

    experiment: Experiment
    alpha: float
    power: float
    expected_pairs: int
    complete_pairs: int
    a_first: int
    conclusion: tuple[str, ...]
    measures: tuple[MeasureComparison, ...]
    tasks: tuple[TaskComparison, ...]
    dropped_pairs: tuple[DroppedPair, ...]
    failed_runs: tuple[RunRecord, ...]
    differences: tuple[RequestDifferenceGroup, ...]


def build_report(
    experiment: Experiment,
    records: Sequence[RunRecord],
    *,
    bootstrap_resamples: int = DEFAULT_BOOTSTRAP_RESAMPLES,
) -> ComparisonReport:
    """Compare the profiles of an experiment, which may be incomplete."""
    runs = latest_runs(records)
    pairs = pair_runs(runs.values())
    measures = compare_measures(pairs, experiment.seed, bootstrap_resamples=bootstrap_resamples)
    failed = sorted(
        (run for run in runs.values() if run.status == "failed"), key=lambda run: run.position
    )
    return ComparisonReport(
        experiment=experiment,
        alpha=DEFAULT_ALPHA,
        power=DEFAULT_POWER,
        expected_pairs=len(experiment.tasks) * experiment.runs,
        complete_pairs=len(pairs),
        a_first=sum(a.position < b.position for a, b in pairs),
        conclusion=tuple(_conclude(measures, failed)),
        measures=tuple(measures),
        tasks=tuple(compare_tasks(experiment.tasks, pairs)),
        dropped_pairs=tuple(list_dropped_pairs(experiment, runs)),
        failed_runs=tuple(failed),
        differences=tuple(group_differences(pairs)),
    )


def to_report_json(report: ComparisonReport) -> dict[str, Any]:
    """Return the report as JSON values. Unknown values are null."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    return {"schema": SCHEMA, **fields}


def render_terminal(report: ComparisonReport, console: Console) -> None:
    """Print the report. A narrow terminal shows fewer columns; the page and JSON have all."""
    for sentence in report.conclusion:
        console.print(Text(sentence, style="bold"))
    console.print(Text())
    console.print(_measure_table(report, console.width))
    for title, lines in build_notes(report):
        console.print(Text(f"\n{title}", style="bold"))
        hidden = len(lines) - _MAX_TERMINAL_LINES
        shown = lines[:_MAX_TERMINAL_LINES] + ([f"and {hidden} more"] if hidden > 0 else [])
        for line in shown:
            console.print(Text(f"  {line}"))


def render_html(report: ComparisonReport) -> str:
    """Render the report as a page. Plots need the extra `plots`; without it the page has none."""
    try:
        plots, plot_note = render_plots(report.measures), ""
    except PlotsUnavailable as error:
        plots, plot_note = {}, str(error)
    return render_template(
        "comparison_report.html",
        package="dovetail.compare",
        report=report,
        primary=report.measures[0],
        columns=_COLUMNS,
        rows=[
            (
                [_keep_units(value) for value in _row_values(one)],
                _verdict_text(one),
                one.verdict in DIFFERENT,
            )
            for one in report.measures
        ],
        profiles=_profile_rows(report.experiment),
        notes=build_notes(report),
        plots=plots,
        plot_note=plot_note,
        amount=format_amount,
    )


def build_notes(report: ComparisonReport) -> list[tuple[str, list[str]]]:
    """Return explanations of the numbers, grouped under titles."""
    sections = [
        ("Pairs", _pair_notes(report)),
        ("No difference shown", _unshown_notes(report.measures)),
        ("Missing values", _missing_notes(report.measures)),
        (
            "Pairs that are not compared",
            [
                f"{one.task}, repetition {one.repetition}: {one.reason}"
                for one in report.dropped_pairs
            ],
        ),
        ("Failed runs", [_describe_failure(run) for run in report.failed_runs]),
        ("First differing requests", [_describe_difference(one) for one in report.differences]),
    ]
    return [(title, lines) for title, lines in sections if lines]


def _conclude(measures: Sequence[MeasureComparison], failed: Sequence[RunRecord]) -> list[str]:
    primary, *others = measures
    sentences = [f"Primary measure, {primary.name} per task: {_describe_result(primary)}."]
    shown = [f"{one.name} {one.verdict}" for one in others if one.verdict in DIFFERENT]
    if shown:
        sentences.append(f"Descriptive measures that differ under b: {', '.join(shown)}.")
    elif primary.effect.difference is not None:
        sentences.append("No difference shown in the descriptive measures.")
    counts = [sum(run.profile == name for run in failed) for name in ("a", "b")]
    if failed:
        sentences.append(
            f"{counts[0]} runs of a and {counts[1]} runs of b failed. The comparison does not "
            "include them; if failures depend on the profile, it is biased."
        )
    return sentences


def _describe_result(one: MeasureComparison) -> str:
    if one.verdict not in DIFFERENT:
        return one.explanation
    values = [format_amount(value, one.unit) for value in (one.effect.mean_b, one.effect.mean_a)]
    text = f"{one.verdict} under b, {values[0]} against {values[1]} ({_describe_change(one)}"
    if one.effect.interval is not None:
        text += f", 95 % interval {format_interval(one.effect.interval, one.unit)}"
    return f"{text}, corrected p {_with_relation(format_p(one.corrected_p))})"


def _with_relation(p_value: str) -> str:
    return p_value if p_value.startswith("<") else f"= {p_value}"


def _describe_change(one: MeasureComparison) -> str:
    """Return the difference, also as a percentage of a."""
    text = format_amount(one.effect.difference, one.unit, signed=True)
    if one.effect.relative is None or one.unit == "share":
        return text
    return f"{text}, {100 * one.effect.relative:+.0f} %"


def _row_values(one: MeasureComparison) -> list[str]:
    effect = one.effect
    return [
        one.name,
        format_amount(effect.mean_a, one.unit),
        format_amount(effect.mean_b, one.unit),
        _describe_change(one),
        format_interval(effect.interval, one.unit),
        "-" if effect.standardized is None else f"{effect.standardized:+.2f}",
        *(
            format_p(value if one.sample.tasks else None)
            for value in (effect.sign_p, effect.permutation_p)
        ),
        format_p(one.corrected_p) if one.tested else "not tested",
    ]


def _keep_units(text: str) -> str:
    """Replace spaces that must not break a line: between numbers and units, and after `<`."""
    return _SPACE_BEFORE_UNIT.sub("\u00a0", text)


def _verdict_text(one: MeasureComparison) -> str:
    return f"{one.verdict} under b" if one.verdict in DIFFERENT else one.verdict


def _measure_table(report: ComparisonReport, width: int) -> Table:
    columns = _COLUMNS if width >= _MIN_WIDE_TERMINAL else _NARROW_COLUMNS
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        is_text = name in ("measure", "verdict")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for one in report.measures:
        cells = dict(zip(_COLUMNS, [*_row_values(one), _verdict_text(one)], strict=True))
        style = "bold" if one.primary else ""
        table.add_row(*(Text(cells[name]) for name in columns), style=style)
    return table


def _pair_notes(report: ComparisonReport) -> list[str]:
    tasks = len(report.measures[0].sample.tasks)
    complete = f"{report.complete_pairs} of {report.expected_pairs} pairs are complete"
    order = f"a ran first in {report.a_first} of them"
    return [f"{complete}, in {tasks} of {len(report.experiment.tasks)} tasks; {order}"]


def _unshown_notes(measures: Sequence[MeasureComparison]) -> list[str]:
    return [
        f"{one.name}: {one.explanation.removeprefix('no difference shown ').strip('()')}"
        for one in measures
        if one.verdict == "no difference shown"
    ]


def _missing_notes(measures: Sequence[MeasureComparison]) -> list[str]:
    return [
        f"{one.name}: {one.sample.missing_pairs} pairs have no value in at least one run; "
        f"{one.sample.pairs} are compared"
        for one in measures
        if one.sample.missing_pairs
    ]


def _describe_failure(run: RunRecord) -> str:
    return f"{run.task}, repetition {run.repetition}, {run.profile}: {run.problem or 'no reason'}"


def _describe_difference(one: RequestDifferenceGroup) -> str:
    example = one.example
    return (
        f"request {one.request}, {one.path}: {one.pairs} pairs, for example {one.task}, repetition "
        f"{one.repetition}: {_excerpt(example.a)} under a, {_excerpt(example.b)} under b"
    )


def _excerpt(value: str | None) -> str:
    return "no value" if value is None else repr(value)


def _profile_rows(experiment: Experiment) -> list[tuple[str, str, str]]:
    """Return the settings of both profiles: name, a, b."""
    a, b = experiment.profiles["a"], experiment.profiles["b"]
    return [(name, _setting(a, name), _setting(b, name)) for name in {**a, **b}]


def _setting(profile: Any, name: str) -> str:
    if name not in profile:
        return "not set"
    value = profile[name]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
