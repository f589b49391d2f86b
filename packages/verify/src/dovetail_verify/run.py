"""Runs checks on a stage, one after the other, and keeps what they found."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from dovetail_model import DovetailError
from dovetail_verify.check import Check, CheckFailed, CheckOutcome, CheckResult, NotApplicable
from dovetail_verify.target import TargetServer

_MAX_SILENT_CHECKS = (
    3  # checks of an API in a row without an answer: nobody waits for all the others
)
_CONCLUSIVE_OUTCOMES = (CheckOutcome.PASS, CheckOutcome.FAIL)
#: Told before each check (with no finding) and after it.
ProgressCallback = Callable[[Check, CheckResult | None], None]


async def run_checks(
    target: TargetServer, checks: Iterable[Check], progress: ProgressCallback
) -> list[CheckResult]:
    """The findings, in the order of the checks.

    An API that stays silent is given up, for every check would wait as long as the first.
    """
    findings, silent = [], Counter[str]()
    for check in checks:
        progress(check, None)
        if silent[check.api] == _MAX_SILENT_CHECKS:
            note = f"not asked: {_MAX_SILENT_CHECKS} checks of this API in a row got no answer"
            finding = CheckResult(check, CheckOutcome.ERROR, note)
        else:
            finding = await run_check(target, check)
            silent[check.api] += finding.seconds >= target.timeout
            silent[check.api] *= finding.outcome not in _CONCLUSIVE_OUTCOMES
        progress(check, finding)
        findings.append(finding)
    return findings


async def run_check(target: TargetServer, check: Check) -> CheckResult:
    """One check. Whatever goes wrong in it is a finding, never an exception."""
    since = asyncio.get_running_loop().time()
    target.exchanges.clear()
    outcome, note, sent, came = await _evaluate(target, check)
    last_sent, last_came = target.last_evidence()
    sent, came = sent or last_sent, came or last_came
    seconds = asyncio.get_running_loop().time() - since
    note, sent, came = (_redact_key(target, text) for text in (note, sent, came))
    return CheckResult(check, outcome, note, sent, came, seconds)


def _redact_key(target: TargetServer, text: str) -> str:
    """Some servers say the key that they refuse: reports are for others to read."""
    return text.replace(target.api_key, "(the key)") if target.api_key else text


async def _evaluate(target: TargetServer, check: Check) -> tuple[CheckOutcome, str, str, str]:
    try:
        target.require_api(check.api)
        lacking = sorted(check.requires - target.features)
        if lacking:
            raise NotApplicable(f"needs {', '.join(lacking)}")
        return CheckOutcome.PASS, await check.run(target), "", ""
    except CheckFailed as fault:
        return CheckOutcome.FAIL, str(fault), fault.sent, fault.received
    except NotApplicable as reason:
        return CheckOutcome.NOT_APPLICABLE, str(reason), "", ""
    except DovetailError as fault:  # of the line: no answer, a broken one, silence
        return CheckOutcome.ERROR, fault.message, "", ""
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        # An answer of a shape that the check did not expect is the server's fault, and told as one.
        return CheckOutcome.FAIL, f"an answer of an unexpected shape ({fault!r})", "", ""
