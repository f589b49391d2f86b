"""The report as one HTML file."""

from collections.abc import Iterable

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.html_page import (
    BadgeTone,
    Content,
    Html,
    KeyFigure,
    PageSection,
    join_content,
    render_badge,
    render_code,
    render_definitions,
    render_details,
    render_figures,
    render_page,
    render_table,
)
from dovetail_verify.report import FAILED_OUTCOMES, HarnessVerdict, VerifyReport

_OUTCOME_TONES: dict[CheckOutcome, BadgeTone] = {
    CheckOutcome.PASS: "good",
    CheckOutcome.FAIL: "bad",
    CheckOutcome.ERROR: "bad",
    CheckOutcome.NOT_APPLICABLE: "dim",
}
_STATUS_TONES: dict[str, BadgeTone] = {
    "works": "good",
    "works, with faults": "warn",
    "will break": "bad",
}
_API_TITLES = {
    "messages": "Anthropic Messages",
    "responses": "OpenAI Responses",
    "chat": "OpenAI Chat Completions",
    "models": "Models",
    "tokens": "Tokens",
    "transport": "Transport",
}


def render_html(report: VerifyReport) -> str:
    """The whole page: the answer first, then the failures, then everything."""
    window = f", {report.context_length:,} tokens of context" if report.context_length else ""
    subtitle = join_content(render_code(report.model), f"at {report.address}{window}")
    sections = [_summary(report), PageSection("Harnesses", [_harness_table(report)])]
    if report.failed:
        failures = [_failure_details(finding) for finding in report.failed]
        sections.append(PageSection("What failed", failures))
    sections += [
        PageSection("APIs", [_api_table(report)]),
        PageSection("All checks", _all_results(report)),
    ]
    return render_page("Harness contract report", sections, subtitle)


def _summary(report: VerifyReport) -> PageSection:
    failed = len(report.failed)
    shown = render_figures(
        [
            KeyFigure(str(len(report.results_with(CheckOutcome.PASS))), "passed", "good"),
            KeyFigure(str(failed), "failed", "bad" if failed else "dim"),
            KeyFigure(
                str(len(report.results_with(CheckOutcome.NOT_APPLICABLE))), "not applicable", "dim"
            ),
            KeyFigure(f"{report.seconds:.0f} s", "to run"),
        ]
    )
    note = (
        "Each check asks the server what an agent harness asks it, and judges the answer by one "
        f"clause of the contract. Made by dovetail verify, version {report.version}."
    )
    return PageSection("Summary", [shown, note])


def _harness_table(report: VerifyReport) -> Html:
    rows = [
        (
            verdict.harness,
            render_badge(verdict.status, _STATUS_TONES.get(verdict.status, "dim")),
            _API_TITLES[verdict.api],
            _explain_verdict(verdict),
        )
        for verdict in report.verdicts()
    ]
    return render_table(("harness", "on this server", "over", "because of"), rows)


def _explain_verdict(verdict: HarnessVerdict) -> Content:
    if verdict.reason:
        return verdict.reason
    named = verdict.breaking or verdict.faults
    return (
        join_content(*(render_code(id) for id in named))
        if named
        else "every check that it needs passed"
    )


def _failure_details(result: CheckResult) -> Html:
    check = result.check
    summary = join_content(
        render_badge(result.outcome, "bad"), Html(f"<b>{render_code(check.id)}</b>"), check.title
    )
    return render_details(
        summary, [render_definitions([("found", result.message), *_evidence(result)])], opened=True
    )


def _evidence(result: CheckResult) -> list[tuple[str, Content]]:
    check = result.check
    told: list[tuple[str, Content]] = [
        ("why it matters", check.why),
        ("clause", f"{check.clause.id}, {check.clause.source}: {check.clause.sentence}"),
    ]
    for name, text in (("sent", result.sent), ("came", result.received)):
        if text:
            told.append((name, render_code(text)))
    return told


def _api_table(report: VerifyReport) -> Html:
    rows = []
    for api, counts in report.outcomes_by_api().items():
        failed = sum(counts[outcome] for outcome in FAILED_OUTCOMES)
        served: Content = ""
        if api in report.missing_apis:
            served = render_badge("API not served", "bad")
        numbers = (counts[CheckOutcome.PASS], failed, counts[CheckOutcome.NOT_APPLICABLE])
        rows.append((_API_TITLES[api], served, *map(str, numbers)))
    return render_table(("API", "", "passed", "failed", "not applicable"), rows, numeric_columns=3)


def _all_results(report: VerifyReport) -> list[Content]:
    """Every check, by API, folded away."""
    parts: list[Content] = []
    for api, counts in report.outcomes_by_api().items():
        found = [finding for finding in report.results if finding.check.api == api]
        failed = sum(counts[outcome] for outcome in FAILED_OUTCOMES)
        marks = [render_badge(f"{counts[CheckOutcome.PASS]} passed", "good")]
        if failed:
            marks.append(render_badge(f"{failed} failed", "bad"))
        if counts[CheckOutcome.NOT_APPLICABLE]:
            marks.append(
                render_badge(f"{counts[CheckOutcome.NOT_APPLICABLE]} not applicable", "dim")
            )
        summary = join_content(Html(f"<b>{_API_TITLES[api]}</b>"), *marks)
        parts.append(render_details(summary, [_results_table(found)]))
    return parts


def _results_table(results: Iterable[CheckResult]) -> Html:
    rows = [
        (
            render_badge(finding.outcome, _OUTCOME_TONES[finding.outcome]),
            join_content(render_code(finding.check.id), finding.check.title),
            finding.check.clause.id,
            render_details(
                finding.message or "seen", [render_definitions(_evidence(finding))], inline=True
            ),
        )
        for finding in results
    ]
    return render_table(("outcome", "check", "clause", "what was seen"), rows)
