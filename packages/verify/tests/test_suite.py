"""The suite with servers that do not respond."""

import asyncio

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, run_checks, select_checks
from dovetail_verify.target import TargetServer


def test_checks_of_an_unresponsive_api_are_skipped() -> None:
    async def run_silent() -> list[CheckResult]:
        connections: set[asyncio.Task[None] | None] = set()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(asyncio.current_task())
            await reader.read()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = TargetServer(Endpoint("127.0.0.1", port), "some-model", timeout=0.05)
            checks = select_checks(BLACK_BOX_CHECKS, ["models", "tokens"])
            results = await run_checks(target, checks, lambda check, result: None)
            await asyncio.gather(*filter(None, connections))
            return results

    messages = [result.message for result in asyncio.run(run_silent())]
    skipped = [message.startswith("skipped") for message in messages]
    assert skipped == [False, False, False, True, True, False], messages


def test_unreachable_server_is_an_error() -> None:
    async def run() -> CheckResult:
        (check,) = select_checks(BLACK_BOX_CHECKS, ["models.openai"])
        target = TargetServer(Endpoint.parse("http://127.0.0.1:9"), "some-model", timeout=5)
        return (await run_checks(target, [check], lambda check, result: None))[0]

    assert asyncio.run(run()).outcome is CheckOutcome.ERROR
