"""Runs checks on a stage, one after the other, and keeps what they found."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from dovetail_model import DovetailError
from dovetail_verify.check import Check, Failed, Finding, NotApplicable, Outcome
from dovetail_verify.target import Stage

_GIVEN_UP = 3  # checks of an API in a row without an answer: nobody waits for all the others
_ANSWERED = (Outcome.PASS, Outcome.FAIL)
#: Told before each check (with no finding) and after it.
Progress = Callable[[Check, Finding | None], None]


async def run(stage: Stage, checks: Iterable[Check], progress: Progress) -> list[Finding]:
    """The findings, in the order of the checks.

    An API that stays silent is given up, for every check would wait as long as the first.
    """
    findings, silent = [], Counter[str]()
    for check in checks:
        progress(check, None)
        if silent[check.api] == _GIVEN_UP:
            note = f"not asked: {_GIVEN_UP} checks of this API in a row got no answer"
            finding = Finding(check, Outcome.ERROR, note)
        else:
            finding = await run_one(stage, check)
            silent[check.api] += finding.seconds >= stage.timeout
            silent[check.api] *= finding.outcome not in _ANSWERED
        progress(check, finding)
        findings.append(finding)
    return findings


async def run_one(stage: Stage, check: Check) -> Finding:
    """One check. Whatever goes wrong in it is a finding, never an exception."""
    since = asyncio.get_running_loop().time()
    stage.exchanges.clear()
    outcome, note, sent, came = await _judged(stage, check)
    last_sent, last_came = stage.last()
    sent, came = sent or last_sent, came or last_came
    seconds = asyncio.get_running_loop().time() - since
    note, sent, came = (_without_key(stage, text) for text in (note, sent, came))
    return Finding(check, outcome, note, sent, came, seconds)


def _without_key(stage: Stage, text: str) -> str:
    """Some servers say the key that they refuse: reports are for others to read."""
    return text.replace(stage.key, "(the key)") if stage.key else text


async def _judged(stage: Stage, check: Check) -> tuple[Outcome, str, str, str]:
    try:
        stage.needs_served(check.api)
        lacking = sorted(check.needs - stage.facts)
        if lacking:
            raise NotApplicable(f"needs {', '.join(lacking)}")
        return Outcome.PASS, await check.run(stage), "", ""
    except Failed as fault:
        return Outcome.FAIL, str(fault), fault.sent, fault.came
    except NotApplicable as reason:
        return Outcome.NOT_APPLICABLE, str(reason), "", ""
    except DovetailError as fault:  # of the line: no answer, a broken one, silence
        return Outcome.ERROR, fault.message, "", ""
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        # An answer of a shape that the check did not expect is the server's fault, and told as one.
        return Outcome.FAIL, f"an answer of an unexpected shape ({fault!r})", "", ""
