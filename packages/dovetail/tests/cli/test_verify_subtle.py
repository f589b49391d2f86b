"""`dovetail verify` finds faults that occur only in one kind of response."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from verify_failures import AsgiRequest, AsgiResponse, Fault, FaultyServer, faulty_server

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, discover_target, run_checks, select_checks
from dovetail_verify.target import TargetServer

pytestmark = pytest.mark.timeout(120)
WITH_TOOLS = b'"tools"'


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(tmp_path_factory.mktemp("own")) as faulty:
        yield faulty


def run_with_fault(faulty: FaultyServer, id: str, fault: Fault) -> CheckResult:
    async def run() -> CheckResult:
        target = TargetServer(Endpoint.parse(faulty.url), faulty.model, timeout=30)
        await discover_target(target)
        faulty.layer.fault = fault
        return (
            await run_checks(
                target, select_checks(BLACK_BOX_CHECKS, [id]), lambda check, result: None
            )
        )[0]

    try:
        return asyncio.run(run())
    finally:
        faulty.layer.fault = None


def events(change: Callable[[str], str], where: bytes = b"") -> Fault:
    """Change the events of streams whose request contains `where`."""

    def change_response(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
        if not response.streamed or where not in request.body:
            return response
        changed = [change(frame) for frame in response.body.decode().split("\n\n")]
        return replace(response, body="\n\n".join(changed).encode())

    return Fault(change_response=change_response)


def unnamed(frame: str) -> str:
    return frame.partition("\n")[2] if "input_json_delta" in frame else frame


def misnamed(frame: str) -> str:
    return frame.replace("event: response.function", "event: response.other")


def unfinished(frame: str) -> str:
    return "" if "[DONE]" in frame else frame


def finished_twice(frame: str) -> str:
    return f"{frame}\n\n{frame}" if '"finish_reason":"tool_calls"' in frame else frame


def one_more(frame: str) -> str:
    add = re.compile(r'(?<="completion_tokens":)\d+')
    return add.sub(lambda match: str(int(match[0]) + 1), frame)


def of_another_item(frame: str) -> str:
    return re.sub(r'"item_id":"[^"]*"', '"item_id":"msg_of_another"', frame)


def without_parts(frame: str) -> str:
    return ": nothing" if "response.content_part.added" in frame else frame


def other_arguments(frame: str) -> str:
    done = frame.startswith("event: response.function_call_arguments.done")
    return frame.replace("Paris", "Rome") if done else frame


def unnumbered(frame: str) -> str:
    return re.sub(r'"sequence_number":\d+', '"sequence_number":0', frame)


def broken_off(frame: str) -> str:
    if not frame.startswith("event: content_block_start"):
        return frame
    error = '{"type":"error","error":{"type":"api_error","message":"no"}}'
    return f"event: error\ndata: {error}\n\n{frame}"


def half_called(frame: str) -> str:
    """Remove the end of a call, and report that the token limit truncated it."""
    shortened = frame.replace('\\"}', "") if "input_json_delta" in frame else frame
    return shortened.replace('"stop_reason":"tool_use"', '"stop_reason":"max_tokens"')


@pytest.mark.parametrize("id", ["order", "kinds", "event_lines"])
def test_truncated_call_is_not_a_fault_of_its_stream(faulty: FaultyServer, id: str) -> None:
    result = run_with_fault(faulty, f"messages.stream.{id}", events(half_called))
    assert result.outcome is CheckOutcome.PASS, result.message


@pytest.mark.parametrize("id", ["ids.call", "call.arguments", "call.end"])
def test_checks_do_not_apply_to_a_truncated_call(faulty: FaultyServer, id: str) -> None:
    result = run_with_fault(faulty, f"messages.{id}", events(half_called))
    assert result.outcome is CheckOutcome.NOT_APPLICABLE, result.message
    assert "truncated by the limit" in result.message


def test_evidence_is_the_stream_with_the_fault(faulty: FaultyServer) -> None:
    swapped = events(lambda frame: frame.replace("text_delta", "input_json_delta"))
    result = run_with_fault(faulty, "messages.stream.kinds", swapped)
    assert result.outcome is CheckOutcome.FAIL
    assert "get_weather" not in result.sent


@pytest.mark.parametrize(
    ("id", "fault", "expected"),
    [
        ("messages.stream.event_lines", events(unnamed, WITH_TOOLS), "has the event line ''"),
        ("responses.stream.event_lines", events(misnamed), "response.other"),
        ("chat.stream.shape", events(unfinished, WITH_TOOLS), "the stream ends with"),
        ("chat.stream.shape", events(finished_twice), "2 finish reasons"),
        ("chat.stream.usage", events(one_more), "total_tokens"),
        ("responses.stream.indices", events(of_another_item), "msg_of_another"),
        ("responses.stream.indices", events(without_parts), "content_part.added"),
        ("responses.call.deltas", events(other_arguments), "Rome"),
        ("responses.errors.too_long", events(unnumbered), "do not increase"),
        ("messages.accepts.claude_code", events(broken_off), "with an error"),
    ],
)
def test_fault_in_one_kind_of_response_is_found(
    faulty: FaultyServer, id: str, fault: Fault, expected: str
) -> None:
    result = run_with_fault(faulty, id, fault)
    assert result.outcome is CheckOutcome.FAIL, f"{result.outcome}: {result.message}"
    assert expected in result.message
