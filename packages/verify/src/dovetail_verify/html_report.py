"""The report as one HTML file."""

from dataclasses import dataclass

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.html_page import render_template
from dovetail_verify.report import FAILED_OUTCOMES, VerifyReport

_OUTCOME_TONES = {
    CheckOutcome.PASS: "good",
    CheckOutcome.FAIL: "bad",
    CheckOutcome.ERROR: "bad",
    CheckOutcome.NOT_APPLICABLE: "dim",
}
_STATUS_TONES = {
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


@dataclass(frozen=True)
class ApiSummary:
    """The results of one API, with counts per outcome."""

    name: str
    passed: int
    failed: int
    not_applicable: int
    results: list[CheckResult]


def render_html(report: VerifyReport) -> str:
    """Render the page: the verdicts, then the failures, then all checks."""
    return render_template(
        "verify_report.html",
        report=report,
        apis=_summarize_apis(report),
        passed=len(report.results_with(CheckOutcome.PASS)),
        failed=len(report.failed),
        not_applicable=len(report.results_with(CheckOutcome.NOT_APPLICABLE)),
        api_titles=_API_TITLES,
        outcome_tones=_OUTCOME_TONES,
        status_tones=_STATUS_TONES,
    )


def _summarize_apis(report: VerifyReport) -> list[ApiSummary]:
    return [
        ApiSummary(
            api,
            counts[CheckOutcome.PASS],
            sum(counts[outcome] for outcome in FAILED_OUTCOMES),
            counts[CheckOutcome.NOT_APPLICABLE],
            [result for result in report.results if result.check.api == api],
        )
        for api, counts in report.outcomes_by_api().items()
    ]
