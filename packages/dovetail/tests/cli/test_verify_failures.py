"""Black-box checks of `dovetail verify`: Dovetail passes all of them, and each can fail."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from verify_failure_table import FAULTS
from verify_failures import Fault, FaultyServer, faulty_server

from dovetail_verify.check import Check, CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, discover_target, run_checks
from dovetail_verify.target import TargetServer

pytestmark = pytest.mark.timeout(120)
CHECKS = {check.id: check for check in BLACK_BOX_CHECKS}
NEEDS_KEY = {"transport.wrong_key"}  # the server has no key here and accepts any


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(tmp_path_factory.mktemp("own")) as faulty:
        yield faulty


def judge(
    faulty: FaultyServer, checks: list[Check], *, key: str | None = None
) -> list[CheckResult]:
    async def run() -> list[CheckResult]:
        target = TargetServer(Endpoint.parse(faulty.url), faulty.model, api_key=key, timeout=30)
        fault, faulty.layer.fault = faulty.layer.fault, None
        await discover_target(target)
        faulty.layer.fault = fault
        return await run_checks(target, checks, lambda check, result: None)

    return asyncio.run(run())


def test_dovetail_passes_every_check(faulty: FaultyServer) -> None:
    results = judge(faulty, list(BLACK_BOX_CHECKS))
    others = {f.check.id: f.message for f in results if f.outcome is not CheckOutcome.PASS}
    assert set(others) == NEEDS_KEY, others


def test_every_check_has_a_fault() -> None:
    assert set(FAULTS) | NEEDS_KEY == set(CHECKS)


SLOW = ("transport.hang_up", "responses.stream.closes", "messages.stream.closes")  # they wait


@pytest.mark.parametrize(
    "id",
    [pytest.param(id, marks=pytest.mark.long if id in SLOW else ()) for id in sorted(FAULTS)],
)
def test_check_finds_its_fault(faulty: FaultyServer, id: str) -> None:
    faulty.layer.fault = FAULTS[id]
    try:
        (result,) = judge(faulty, [CHECKS[id]])
    finally:
        faulty.layer.fault = None
    assert result.outcome is CheckOutcome.FAIL, f"{result.outcome}: {result.message}"
    assert result.message
    assert result.sent
    assert result.received


def test_server_that_ignores_api_keys_fails(faulty: FaultyServer) -> None:
    (result,) = judge(faulty, [CHECKS["transport.wrong_key"]], key="some-key")
    assert result.outcome is CheckOutcome.FAIL
    assert "accepted" in result.message


def test_checks_of_a_missing_api_do_not_apply(faulty: FaultyServer) -> None:
    check = CHECKS["messages.whole.shape"]

    async def run() -> CheckResult:
        target = TargetServer(Endpoint.parse(faulty.url), faulty.model, timeout=30)
        await discover_target(target)
        return (await run_checks(target, [check], lambda check, result: None))[0]

    faulty.layer.fault = Fault(
        change_response=lambda request, response: (
            replace(response, status=404) if "messages" in request.path else response
        )
    )
    try:
        result = asyncio.run(run())
    finally:
        faulty.layer.fault = None
    assert result.outcome is CheckOutcome.NOT_APPLICABLE
    assert "API not served" in result.message
