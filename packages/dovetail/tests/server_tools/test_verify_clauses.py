"""The clauses of `dovetail verify` about server tools, on a server that runs searches."""

import pytest
from http_fixture import NAME, Stage
from server_tools_fixture import SEARCH, StubProvider, create_tools, run_served

from dovetail_verify.check import CheckOutcome
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, run_checks, select_checks
from dovetail_verify.target import TargetServer


@pytest.mark.parametrize("api", ["messages", "responses"])
@pytest.mark.parametrize("error", [None, "unavailable"])
def test_search_that_is_run_passes(api: str, error: str | None) -> None:
    async def main(stage: Stage) -> None:
        stage.engine.plan = stage.engine.script(SEARCH, "Rain.", "Red")
        target = TargetServer(Endpoint.parse(stage.url), NAME, timeout=30)
        checks = select_checks(BLACK_BOX_CHECKS, [f"{api}.server_tools.run"])
        (result,) = await run_checks(target, checks, lambda check, result: None)
        assert result.outcome is CheckOutcome.PASS, result
        assert result.message == "searches: 1"

    run_served(main, create_tools(StubProvider(error=error)))


def test_checks_are_found_by_clause() -> None:
    found = {check.id for check in select_checks(BLACK_BOX_CHECKS, ["ST-1", "ST-2"])}
    assert len(found) == 4
