"""What the findings mean: in numbers, for each API, and for each harness."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail_verify.check import Finding, Outcome
from dovetail_verify.clauses import CLAUDE_CODE, CODEX, OPENCLAW, OPENCODE, PI
from dovetail_verify.registry import APIS, BLACK_BOX

BAD = (Outcome.FAIL, Outcome.ERROR)
#: The APIs that each harness can use, the usual one first.
HARNESSES: Mapping[str, tuple[str, ...]] = {
    CLAUDE_CODE: ("messages",),
    CODEX: ("responses",),
    OPENCODE: ("chat", "responses"),
    PI: ("chat", "responses", "messages"),
    OPENCLAW: ("chat", "responses", "messages"),
}
_SHARED = ("models", "tokens", "transport")
Standing = Literal["works", "works, with faults", "will break", "not judged"]


@dataclass(frozen=True)
class Verdict:
    """Whether a harness can be used, over which API, and which checks say so."""

    harness: str
    standing: Standing
    api: str
    reason: str
    breaking: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All findings about one server."""

    address: str
    model: str
    findings: Sequence[Finding]
    missing: Mapping[str, str] = field(default_factory=dict)
    window: int | None = None
    version: str = ""

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome in BAD]

    @property
    def seconds(self) -> float:
        return sum(finding.seconds for finding in self.findings)

    def of(self, outcome: Outcome) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome is outcome]

    def apis(self) -> dict[str, Counter[Outcome]]:
        """The outcomes in each API that was looked at."""
        counted = {
            api: Counter(f.outcome for f in self.findings if f.check.api == api) for api in APIS
        }
        return {api: counts for api, counts in counted.items() if counts}

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(harness, apis) for harness, apis in HARNESSES.items()]

    def _verdict(self, harness: str, apis: tuple[str, ...]) -> Verdict:
        """By the API that serves the harness best."""
        verdicts = [self._over(harness, api) for api in apis]
        return min(verdicts, key=lambda verdict: _ORDER.index(verdict.standing))

    def _complete(self, api: str) -> bool:
        """Whether every check of an API was run: some can be chosen, or a run broken off."""
        run = {finding.check.id for finding in self.findings}
        return all(check.id in run for check in BLACK_BOX if check.api in (api, *_SHARED))

    def _over(self, harness: str, api: str) -> Verdict:
        if api in self.missing:
            return Verdict(harness, "will break", api, f"API not served: {self.missing[api]}")
        if not any(finding.check.api == api for finding in self.findings):
            return Verdict(harness, "not judged", api, "no check of this API was run")
        found = [f for f in self.failed if f.check.api in (api, *_SHARED)]
        breaking = tuple(f.check.id for f in found if harness in f.check.clause.breaks)
        faults = tuple(f.check.id for f in found if f.check.id not in breaking)
        if breaking:
            return Verdict(harness, "will break", api, "", breaking, faults)
        if not self._complete(api):
            return Verdict(harness, "not judged", api, "not all of its checks were run", (), faults)
        standing: Standing = "works, with faults" if faults else "works"
        return Verdict(harness, standing, api, "", (), faults)


_ORDER: tuple[Standing, ...] = ("works", "works, with faults", "will break", "not judged")


def as_json(report: Report) -> dict[str, Any]:
    """The report for machines."""
    return {
        "address": report.address,
        "model": report.model,
        "context_length": report.window,
        "dovetail": report.version,
        "checks": len(report.findings),
        "outcomes": {str(outcome): len(report.of(outcome)) for outcome in Outcome},
        "apis": {
            api: {str(outcome): counts[outcome] for outcome in Outcome}
            for api, counts in report.apis().items()
        },
        "not_served": dict(report.missing),
        "harnesses": {
            verdict.harness: {
                "standing": verdict.standing,
                "api": verdict.api,
                "reason": verdict.reason,
                "breaking": list(verdict.breaking),
                "faults": list(verdict.faults),
            }
            for verdict in report.verdicts()
        },
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    check = finding.check
    return {
        "id": check.id,
        "api": check.api,
        "title": check.title,
        "clause": check.clause.id,
        "sentence": check.clause.sentence,
        "outcome": str(finding.outcome),
        "note": finding.note,
        "why": check.why,
        "sent": finding.sent,
        "came": finding.came,
        "seconds": round(finding.seconds, 3),
    }
