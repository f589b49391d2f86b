"""The report on a server: counts, results per API, and a verdict per harness."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.clauses import CLAUDE_CODE, CODEX, OPENCLAW, OPENCODE, PI
from dovetail_verify.suite import APIS, BLACK_BOX_CHECKS

FAILED_OUTCOMES = (CheckOutcome.FAIL, CheckOutcome.ERROR)
#: The APIs that each harness can use, the default one first.
HARNESS_APIS: Mapping[str, tuple[str, ...]] = {
    CLAUDE_CODE: ("messages",),
    CODEX: ("responses",),
    OPENCODE: ("chat", "responses"),
    PI: ("chat", "responses", "messages"),
    OPENCLAW: ("chat", "responses", "messages"),
}
_SHARED_APIS = ("models", "tokens", "transport")
HarnessStatus = Literal["works", "works, with faults", "will break", "not judged"]


@dataclass(frozen=True)
class HarnessVerdict:
    """Whether a harness works with the server, over which API, and the checks that decide it."""

    harness: str
    status: HarnessStatus
    api: str
    reason: str
    breaking: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyReport:
    """All results for one server."""

    address: str
    model: str
    results: Sequence[CheckResult]
    missing_apis: Mapping[str, str] = field(default_factory=dict)
    context_length: int | None = None
    version: str = ""

    @property
    def failed(self) -> list[CheckResult]:
        return [result for result in self.results if result.outcome in FAILED_OUTCOMES]

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def results_with(self, outcome: CheckOutcome) -> list[CheckResult]:
        return [result for result in self.results if result.outcome is outcome]

    def outcomes_by_api(self) -> dict[str, Counter[CheckOutcome]]:
        """Count the outcomes per API that was checked."""
        counted = {
            api: Counter(f.outcome for f in self.results if f.check.api == api) for api in APIS
        }
        return {api: counts for api, counts in counted.items() if counts}

    def verdicts(self) -> list[HarnessVerdict]:
        return [self._verdict(harness, apis) for harness, apis in HARNESS_APIS.items()]

    def _verdict(self, harness: str, apis: tuple[str, ...]) -> HarnessVerdict:
        """Return the best verdict of the APIs that the harness can use."""
        verdicts = [self._verdict_over(harness, api) for api in apis]
        return min(verdicts, key=lambda verdict: _STATUS_ORDER.index(verdict.status))

    def _is_complete(self, api: str) -> bool:
        """Whether all checks of an API ran. The user can select checks or interrupt the run."""
        run = {result.check.id for result in self.results}
        return all(
            check.id in run for check in BLACK_BOX_CHECKS if check.api in (api, *_SHARED_APIS)
        )

    def _verdict_over(self, harness: str, api: str) -> HarnessVerdict:
        if api in self.missing_apis:
            return HarnessVerdict(
                harness, "will break", api, f"API not served: {self.missing_apis[api]}"
            )
        if not any(result.check.api == api for result in self.results):
            return HarnessVerdict(harness, "not judged", api, "no check of this API ran")
        found = [f for f in self.failed if f.check.api in (api, *_SHARED_APIS)]
        breaking = tuple(f.check.id for f in found if harness in f.check.clause.breaks)
        faults = tuple(f.check.id for f in found if f.check.id not in breaking)
        if breaking:
            return HarnessVerdict(harness, "will break", api, "", breaking, faults)
        if not self._is_complete(api):
            return HarnessVerdict(
                harness, "not judged", api, "not all checks of this API ran", (), faults
            )
        status: HarnessStatus = "works, with faults" if faults else "works"
        return HarnessVerdict(harness, status, api, "", (), faults)


_STATUS_ORDER: tuple[HarnessStatus, ...] = (
    "works",
    "works, with faults",
    "will break",
    "not judged",
)


def report_to_dict(report: VerifyReport) -> dict[str, Any]:
    """Return the report as JSON values.

    Some keys differ from the field names because the format is older than the names.
    """
    return {
        "address": report.address,
        "model": report.model,
        "context_length": report.context_length,
        "dovetail": report.version,
        "checks": len(report.results),
        "outcomes": {str(outcome): len(report.results_with(outcome)) for outcome in CheckOutcome},
        "apis": {
            api: {str(outcome): counts[outcome] for outcome in CheckOutcome}
            for api, counts in report.outcomes_by_api().items()
        },
        "not_served": dict(report.missing_apis),
        "harnesses": {
            verdict.harness: {
                "standing": verdict.status,
                "api": verdict.api,
                "reason": verdict.reason,
                "breaking": list(verdict.breaking),
                "faults": list(verdict.faults),
            }
            for verdict in report.verdicts()
        },
        "findings": [_result_to_dict(result) for result in report.results],
    }


def _result_to_dict(result: CheckResult) -> dict[str, Any]:
    check = result.check
    return {
        "id": check.id,
        "api": check.api,
        "title": check.title,
        "clause": check.clause.id,
        "sentence": check.clause.sentence,
        "outcome": str(result.outcome),
        "note": result.message,
        "why": check.why,
        "sent": result.sent,
        "came": result.received,
        "seconds": round(result.seconds, 3),
    }
