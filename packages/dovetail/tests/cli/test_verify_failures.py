"""`dovetail verify`, black box: our server passes every check, and every check can fail."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from verify_failure_table import FAULTS
from verify_failures import Fault, Play, faulty_server

from dovetail_verify.check import Check, CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, discover_target, run_checks
from dovetail_verify.target import TargetServer

pytestmark = pytest.mark.timeout(120)
CHECKS = {check.id: check for check in BLACK_BOX_CHECKS}
NEEDS_KEY = {"transport.wrong_key"}  # our server has none here: any key is welcome


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with faulty_server(tmp_path_factory.mktemp("own")) as play:
        yield play


def judge(play: Play, checks: list[Check], *, key: str | None = None) -> list[CheckResult]:
    async def judged() -> list[CheckResult]:
        stage = TargetServer(Endpoint.parse(play.url), play.model, api_key=key, timeout=30)
        fault, play.layer.fault = play.layer.fault, None
        await discover_target(stage)
        play.layer.fault = fault
        return await run_checks(stage, checks, lambda check, finding: None)

    return asyncio.run(judged())


def test_our_server_keeps_every_clause(play: Play) -> None:
    findings = judge(play, list(BLACK_BOX_CHECKS))
    strange = {f.check.id: f.message for f in findings if f.outcome is not CheckOutcome.PASS}
    assert set(strange) == NEEDS_KEY, strange


def test_a_fault_is_known_for_every_check() -> None:
    assert set(FAULTS) | NEEDS_KEY == set(CHECKS)


SLOW = ("transport.hang_up", "responses.stream.closes", "messages.stream.closes")  # they wait


@pytest.mark.parametrize(
    "id",
    [pytest.param(id, marks=pytest.mark.long if id in SLOW else ()) for id in sorted(FAULTS)],
)
def test_the_fault_is_found(play: Play, id: str) -> None:
    play.layer.fault = FAULTS[id]
    try:
        (finding,) = judge(play, [CHECKS[id]])
    finally:
        play.layer.fault = None
    assert finding.outcome is CheckOutcome.FAIL, f"{finding.outcome}: {finding.message}"
    assert finding.message
    assert finding.sent
    assert finding.received


def test_a_key_that_nobody_checks_is_found(play: Play) -> None:
    (finding,) = judge(play, [CHECKS["transport.wrong_key"]], key="some-key")
    assert finding.outcome is CheckOutcome.FAIL
    assert "accepted" in finding.message


def test_a_server_that_does_not_answer_is_an_error() -> None:
    async def judged() -> CheckResult:
        stage = TargetServer(Endpoint.parse("http://127.0.0.1:9"), "some-model", timeout=5)
        return (await run_checks(stage, [CHECKS["models.openai"]], lambda check, finding: None))[0]

    assert asyncio.run(judged()).outcome is CheckOutcome.ERROR


def test_an_api_that_is_not_served_is_not_judged(play: Play) -> None:
    check = CHECKS["messages.whole.shape"]

    async def judged() -> CheckResult:
        stage = TargetServer(Endpoint.parse(play.url), play.model, timeout=30)
        await discover_target(stage)
        return (await run_checks(stage, [check], lambda check, finding: None))[0]

    play.layer.fault = Fault(
        tell=lambda asked, told: replace(told, status=404) if "messages" in asked.path else told
    )
    try:
        finding = asyncio.run(judged())
    finally:
        play.layer.fault = None
    assert finding.outcome is CheckOutcome.NOT_APPLICABLE
    assert "API not served" in finding.message
