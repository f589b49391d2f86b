"""The report of `dovetail compare` on records whose effects are known."""

import builtins
import io
import json
import re
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from comparison_records import make_experiment, make_records
from rich.console import Console

from dovetail.compare.comparison import MIN_DIFFERING_TASKS, MeasureComparison
from dovetail.compare.plots import PlotsUnavailable, render_plots
from dovetail.compare.records import Experiment, ProfileName, RequestDifference, RunRecord
from dovetail.compare.report import (
    ComparisonReport,
    build_report,
    render_html,
    render_terminal,
    to_report_json,
)

ALPHA = 0.05


def _null_fields(
    random: Random, profile: ProfileName, task: int, repetition: int
) -> dict[str, Any]:
    shell, edits = int(random.expovariate(0.2)), random.randrange(3)
    return {
        "solved": random.random() < 0.7,
        "tool_calls": {"shell": shell, "edit": edits},
        "turns": shell + edits + 1,
        "output_tokens": 50 * shell + random.randrange(200),
        "ttft_seconds": (random.random(), random.random()),
        "wall_seconds": random.uniform(1, 9),
    }


def _effect_fields(
    random: Random, profile: ProfileName, task: int, repetition: int
) -> dict[str, Any]:
    fields = _null_fields(random, profile, task, repetition)
    return fields | {"tool_calls": {"shell": task + random.randrange(3) + 4 * (profile == "b")}}


def _equal_fields(
    random: Random, profile: ProfileName, task: int, repetition: int
) -> dict[str, Any]:
    return {"tool_calls": {"shell": task}, "turns": task + 1, "wall_seconds": 2.0}


def _measure(report: ComparisonReport, name: str) -> MeasureComparison:
    return next(one for one in report.measures if one.name == name)


def _terminal(report: ComparisonReport, width: int = 200) -> str:
    output = io.StringIO()
    render_terminal(report, Console(width=width, file=output))
    return output.getvalue()


def test_a_known_effect_is_shown() -> None:
    experiment = make_experiment(20, runs=2)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    primary = report.measures[0]
    assert (primary.name, primary.primary, primary.verdict) == ("tool calls", True, "higher")
    assert primary.effect.difference == pytest.approx(4, abs=0.6)
    assert primary.effect.interval is not None
    assert primary.effect.interval[0] <= 4 <= primary.effect.interval[1]
    assert primary.corrected_p is not None
    assert primary.effect.permutation_p < primary.corrected_p <= ALPHA
    assert report.conclusion[0].startswith("Primary measure, tool calls per task: higher under b, ")
    assert "tool calls: shell higher" in report.conclusion[1]
    assert (report.complete_pairs, report.expected_pairs) == (40, 40)
    assert "higher under b" in _terminal(report)


def test_a_narrow_terminal_shows_complete_numbers() -> None:
    experiment = make_experiment(20)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    lines = _terminal(report, width=80).splitlines()
    row = next(line for line in lines if line.startswith("wall time"))
    effect = _measure(report, "wall time").effect
    for value in (
        f"{effect.mean_a:.3f} s",
        f"{effect.mean_b:.3f} s",
        f"{effect.difference:+.3f} s",
    ):
        assert value in row
    assert "p (permutation)" not in "".join(lines)
    assert "p (permutation)" in _terminal(report, width=150)


def test_equal_runs_show_no_difference() -> None:
    experiment = make_experiment(30)
    report = build_report(experiment, make_records(experiment, _equal_fields))
    assert {one.verdict for one in report.measures} == {"no difference shown", "not measured"}
    assert not any(one.tested for one in report.measures)
    # With 30 equal tasks: 1 - 0.05 ** (1 / 30) = 9.5 %
    expected = (
        "no difference shown (the values are equal in all 30 tasks; with 95 % confidence, less "
        "than 9.5 % of such tasks differ)"
    )
    assert report.measures[0].explanation == expected
    text = _terminal(report)
    assert f"Primary measure, tool calls per task: {expected}." in text.replace("\n", " ")
    assert "No difference shown in the descriptive measures." in text


def test_no_difference_is_reported_with_the_smallest_detectable_one() -> None:
    experiment = make_experiment(24)
    report = build_report(experiment, make_records(experiment, _null_fields, seed=4))
    primary = report.measures[0]
    assert primary.verdict == "no difference shown"
    assert primary.effect.deviation is not None
    assert primary.detectable is not None
    # A permutation test of 24 tasks at half of alpha needs an effect of about 0.66 deviations.
    assert primary.detectable / primary.effect.deviation == pytest.approx(0.66, abs=0.02)
    assert f"could have detected a difference of {primary.detectable:.2f}, " in report.conclusion[0]


def test_few_differing_tasks_are_not_tested_and_take_no_share() -> None:
    def fields(random: Random, profile: ProfileName, task: int, repetition: int) -> dict[str, Any]:
        return {"tool_calls": {"shell": 1, "rare": int(profile == "b" and task < 3)}}

    experiment = make_experiment(20)
    report = build_report(experiment, make_records(experiment, fields))
    rare = _measure(report, "tool calls: rare")
    assert (rare.tested, rare.corrected_p) == (False, None)
    assert (
        "3 of 20 tasks differ; a difference can be shown only if at least 6 do" in rare.explanation
    )
    assert MIN_DIFFERING_TASKS == 6


def test_few_tasks_can_show_nothing() -> None:
    experiment = make_experiment(5, runs=9)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    assert "can be shown with so few tasks (5); at least 6 are needed" in report.conclusion[0]


def test_missing_values_are_counted() -> None:
    def fields(random: Random, profile: ProfileName, task: int, repetition: int) -> dict[str, Any]:
        known = task >= 4 or profile == "a"
        return {"cached_tokens": 100 + random.randrange(50) if known else None}

    experiment = make_experiment(20)
    report = build_report(experiment, make_records(experiment, fields))
    cached = _measure(report, "cached tokens")
    assert (cached.sample.pairs, cached.sample.missing_pairs) == (16, 4)
    assert _measure(report, "new tokens").verdict == "not measured"
    text = _terminal(report)
    assert "cached tokens: 4 pairs have no value in at least one run; 16 are compared" in text
    assert "new tokens: 20 pairs have no value" in text


def test_failed_and_missing_runs_are_listed() -> None:
    experiment = make_experiment(8)
    records = [
        _fail(run) if (run.task, run.profile) == ("task-02", "b") else run
        for run in make_records(experiment, _null_fields)
        if (run.task, run.profile) != ("task-03", "a")
    ]
    report = build_report(experiment, records)
    assert [(one.task, one.reason) for one in report.dropped_pairs] == [
        ("task-02", "b failed"),
        ("task-03", "a not run"),
    ]
    assert report.complete_pairs == 6
    assert "0 runs of a and 1 runs of b failed." in report.conclusion[-1]
    assert "task-02, repetition 0, b: the endpoint closed the connection" in _terminal(report)


def test_a_run_that_was_repeated_after_a_failure_is_complete() -> None:
    experiment = make_experiment(7)
    records = make_records(experiment, _null_fields)
    report = build_report(experiment, [_fail(records[0]), *records])
    assert (report.complete_pairs, report.failed_runs, report.dropped_pairs) == (7, (), ())
    assert build_report(experiment, [*records, _fail(records[0])]) == report


@pytest.mark.parametrize("failed", [True, False], ids=["all failed", "empty"])
def test_without_a_complete_pair_nothing_is_measured(failed: bool) -> None:
    experiment = make_experiment(3, runs=2)
    records = [_fail(run) for run in make_records(experiment, _null_fields)] if failed else []
    report = build_report(experiment, records)
    assert report.conclusion[0] == (
        "Primary measure, tool calls per task: not measured: no pair has a value in both runs."
    )
    assert len(report.dropped_pairs) == 6
    assert {one.reason for one in report.dropped_pairs} == {
        "a and b failed" if failed else "a and b not run"
    }
    assert "not measured" in _terminal(report)
    assert "not measured" in render_html(report)
    assert json.dumps(to_report_json(report), allow_nan=False)


def test_the_first_differing_requests_are_grouped() -> None:
    def fields(random: Random, profile: ProfileName, task: int, repetition: int) -> dict[str, Any]:
        path = "tools[0].name" if task else "input[1]"
        found = RequestDifference(int(not task), path, "shell", None)
        return {"difference": found if profile == "b" else None}

    experiment = make_experiment(6)
    report = build_report(experiment, make_records(experiment, fields))
    assert [(one.path, one.pairs, one.task) for one in report.differences] == [
        ("tools[0].name", 5, "task-01"),
        ("input[1]", 1, "task-00"),
    ]
    assert "'shell' under a, no value under b" in _terminal(report)


def test_json_has_all_parts() -> None:
    experiment = make_experiment(10)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    fields = json.loads(json.dumps(to_report_json(report), allow_nan=False))
    assert fields["schema"] == "dovetail.comparison/1"
    assert fields["experiment"]["profiles"]["b"] == {"alias": "other"}
    assert fields["measures"][0]["effect"]["permutation_p"] == 2 / 2**10
    assert len(fields["measures"][0]["sample"]["differences"]) == 10
    assert fields["tasks"][3]["seeds"] == [1003]


def test_page_is_escaped_and_self_contained() -> None:
    hostile = "<script>alert('$x$')</script>"
    experiment = Experiment(
        hostile, hostile, tuple(f"{hostile}{at}" for at in range(8)), 1, 7,
        {"a": {"alias": hostile}, "b": {hostile: {"nested": [hostile]}}},
    )  # fmt: skip

    def fields(random: Random, profile: ProfileName, task: int, repetition: int) -> dict[str, Any]:
        return {
            "tool_calls": {hostile: task + random.randrange(9)},
            "diagnostics": {hostile: random.randrange(9)},
            "difference": RequestDifference(0, hostile, hostile, hostile),
            "status": "failed" if task == 7 else "completed",
            "problem": hostile,
        }

    page = render_html(build_report(experiment, make_records(experiment, fields)))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 20
    assert page.count("<svg") == 2
    assert not re.search(r'(src|href)="(?!#)', page.replace("xlink:href", "href"))
    assert "prefers-color-scheme" in page


def test_page_names_profiles_seed_and_harness() -> None:
    experiment = make_experiment(8)
    page = render_html(build_report(experiment, make_records(experiment, _effect_fields)))
    for part in ("codex 1.2.3", "native", "differs", "<dt>seed</dt><dd>7</dd>", "declared before"):
        assert part in page


def test_plots_are_valid_and_reproducible_svg() -> None:
    experiment = make_experiment(12)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    plots = render_plots(report.measures)
    assert plots == render_plots(report.measures)
    titles = [
        "Difference per task in tool calls, b - a",
        "Standardized differences with 95 % intervals",
    ]
    assert list(plots) == titles
    for svg in plots.values():
        ElementTree.fromstring(svg)
        assert "currentColor" in svg
    assert "task-11" in plots[titles[0]]
    assert "tool calls: shell" in plots[titles[1]]


def test_page_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    experiment = make_experiment(8)
    report = build_report(experiment, make_records(experiment, _effect_fields))
    with pytest.raises(PlotsUnavailable, match=r"pip install 'dovetail\[plots\]'"):
        render_plots(report.measures)
    page = render_html(report)
    assert "<svg" not in page
    assert "Plots require matplotlib" in page


def test_reports_of_equal_profiles_rarely_state_a_difference() -> None:
    """1,000 experiments without an effect: at most alpha of the reports state any difference."""
    experiment = make_experiment(14)
    stated = primary = 0
    for seed in range(1000):
        records = make_records(experiment, _null_fields, seed)
        report = build_report(experiment, records, bootstrap_resamples=20)
        verdicts = [one.verdict in ("higher", "lower") for one in report.measures]
        stated += any(verdicts)
        primary += verdicts[0]
    print(f"any measure: {stated}, primary measure: {primary}")
    assert stated <= 1000 * ALPHA + 21  # three standard deviations of the binomial distribution
    assert primary <= 1000 * ALPHA / 2 + 15
    assert stated > 0


def _fail(run: RunRecord) -> RunRecord:
    fields = {name: getattr(run, name) for name in ("task", "repetition", "profile", "seed")}
    problem = "the endpoint closed the connection"
    return RunRecord(**fields, position=run.position, status="failed", problem=problem)
