"""The report as one HTML file."""

from collections.abc import Iterable

from dovetail_verify.check import Finding, Outcome
from dovetail_verify.html_page import (
    Content,
    Figure,
    Html,
    Section,
    Tone,
    badge,
    code,
    details,
    facts,
    figures,
    joined,
    page,
    table,
)
from dovetail_verify.report import BAD, Report, Verdict

_TONES: dict[Outcome, Tone] = {
    Outcome.PASS: "good",
    Outcome.FAIL: "bad",
    Outcome.ERROR: "bad",
    Outcome.NOT_APPLICABLE: "dim",
}
_STANDINGS: dict[str, Tone] = {"works": "good", "works, with faults": "warn", "will break": "bad"}
_NAMES = {
    "messages": "Anthropic Messages",
    "responses": "OpenAI Responses",
    "chat": "OpenAI Chat Completions",
    "models": "Models",
    "tokens": "Tokens",
    "transport": "Transport",
}


def as_html(report: Report) -> str:
    """The whole page: the answer first, then the failures, then everything."""
    window = f", {report.window:,} tokens of context" if report.window else ""
    subtitle = joined(code(report.model), f"at {report.address}{window}")
    sections = [_summary(report), Section("Harnesses", [_harnesses(report)])]
    if report.failed:
        failures = [_failure(finding) for finding in report.failed]
        sections.append(Section("What failed", failures))
    sections += [Section("APIs", [_apis(report)]), Section("All checks", _everything(report))]
    return page("Harness contract report", sections, subtitle)


def _summary(report: Report) -> Section:
    failed = len(report.failed)
    shown = figures(
        [
            Figure(str(len(report.of(Outcome.PASS))), "passed", "good"),
            Figure(str(failed), "failed", "bad" if failed else "dim"),
            Figure(str(len(report.of(Outcome.NOT_APPLICABLE))), "not applicable", "dim"),
            Figure(f"{report.seconds:.0f} s", "to run"),
        ]
    )
    note = (
        "Each check asks the server what an agent harness asks it, and judges the answer by one "
        f"clause of the contract. Made by dovetail verify, version {report.version}."
    )
    return Section("Summary", [shown, note])


def _harnesses(report: Report) -> Html:
    rows = [
        (
            verdict.harness,
            badge(verdict.standing, _STANDINGS.get(verdict.standing, "dim")),
            _NAMES[verdict.api],
            _because(verdict),
        )
        for verdict in report.verdicts()
    ]
    return table(("harness", "on this server", "over", "because of"), rows)


def _because(verdict: Verdict) -> Content:
    if verdict.reason:
        return verdict.reason
    named = verdict.breaking or verdict.faults
    return joined(*(code(id) for id in named)) if named else "every check that it needs passed"


def _failure(finding: Finding) -> Html:
    check = finding.check
    summary = joined(badge(finding.outcome, "bad"), Html(f"<b>{code(check.id)}</b>"), check.title)
    return details(summary, [facts([("found", finding.note), *_evidence(finding)])], opened=True)


def _evidence(finding: Finding) -> list[tuple[str, Content]]:
    check = finding.check
    told: list[tuple[str, Content]] = [
        ("why it matters", check.why),
        ("clause", f"{check.clause.id}, {check.clause.source}: {check.clause.sentence}"),
    ]
    for name, text in (("sent", finding.sent), ("came", finding.came)):
        if text:
            told.append((name, code(text)))
    return told


def _apis(report: Report) -> Html:
    rows = []
    for api, counts in report.apis().items():
        failed = sum(counts[outcome] for outcome in BAD)
        served: Content = ""
        if api in report.missing:
            served = badge("API not served", "bad")
        numbers = (counts[Outcome.PASS], failed, counts[Outcome.NOT_APPLICABLE])
        rows.append((_NAMES[api], served, *map(str, numbers)))
    return table(("API", "", "passed", "failed", "not applicable"), rows, numbers=3)


def _everything(report: Report) -> list[Content]:
    """Every check, by API, folded away."""
    parts: list[Content] = []
    for api, counts in report.apis().items():
        found = [finding for finding in report.findings if finding.check.api == api]
        failed = sum(counts[outcome] for outcome in BAD)
        marks = [badge(f"{counts[Outcome.PASS]} passed", "good")]
        if failed:
            marks.append(badge(f"{failed} failed", "bad"))
        if counts[Outcome.NOT_APPLICABLE]:
            marks.append(badge(f"{counts[Outcome.NOT_APPLICABLE]} not applicable", "dim"))
        summary = joined(Html(f"<b>{_NAMES[api]}</b>"), *marks)
        parts.append(details(summary, [_checks(found)]))
    return parts


def _checks(found: Iterable[Finding]) -> Html:
    rows = [
        (
            badge(finding.outcome, _TONES[finding.outcome]),
            joined(code(finding.check.id), finding.check.title),
            finding.check.clause.id,
            details(finding.note or "seen", [facts(_evidence(finding))], inline=True),
        )
        for finding in found
    ]
    return table(("outcome", "check", "clause", "what was seen"), rows)
