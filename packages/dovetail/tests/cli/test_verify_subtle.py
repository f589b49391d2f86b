"""`dovetail verify`: faults that show only in one kind of answer are found, too."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from verify_failures import Asked, Fault, Play, Told, faulty_server

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import BLACK_BOX_CHECKS, discover_target, run_checks, select_checks
from dovetail_verify.target import TargetServer

pytestmark = pytest.mark.timeout(120)
WITH_TOOLS = b'"tools"'


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with faulty_server(tmp_path_factory.mktemp("own")) as play:
        yield play


def found(play: Play, id: str, fault: Fault) -> CheckResult:
    async def judged() -> CheckResult:
        stage = TargetServer(Endpoint.parse(play.url), play.model, timeout=30)
        await discover_target(stage)
        play.layer.fault = fault
        return (
            await run_checks(
                stage, select_checks(BLACK_BOX_CHECKS, [id]), lambda check, finding: None
            )
        )[0]

    try:
        return asyncio.run(judged())
    finally:
        play.layer.fault = None


def events(change: Callable[[str], str], where: bytes = b"") -> Fault:
    """Each event of some streams is another: of those that were asked with certain bytes."""

    def tell(asked: Asked, told: Told) -> Told:
        if not told.streamed or where not in asked.body:
            return told
        changed = [change(frame) for frame in told.body.decode().split("\n\n")]
        return replace(told, body="\n\n".join(changed).encode())

    return Fault(tell=tell)


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
    return add.sub(lambda found: str(int(found[0]) + 1), frame)


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
    """The rest of a call is missing; the limit is said to have cut it."""
    kept = frame.replace('\\"}', "") if "input_json_delta" in frame else frame
    return kept.replace('"stop_reason":"tool_use"', '"stop_reason":"max_tokens"')


@pytest.mark.parametrize("id", ["order", "kinds", "event_lines"])
def test_a_call_that_was_cut_is_no_fault_of_its_stream(play: Play, id: str) -> None:
    finding = found(play, f"messages.stream.{id}", events(half_called))
    assert finding.outcome is CheckOutcome.PASS, finding.message


@pytest.mark.parametrize("id", ["ids.call", "call.arguments", "call.end"])
def test_a_call_that_was_cut_is_not_judged(play: Play, id: str) -> None:
    finding = found(play, f"messages.{id}", events(half_called))
    assert finding.outcome is CheckOutcome.NOT_APPLICABLE, finding.message
    assert "cut by the limit" in finding.message


def test_evidence_is_the_stream_that_has_the_fault(play: Play) -> None:
    swapped = events(lambda frame: frame.replace("text_delta", "input_json_delta"))
    finding = found(play, "messages.stream.kinds", swapped)
    assert finding.outcome is CheckOutcome.FAIL
    assert "get_weather" not in finding.sent


@pytest.mark.parametrize(
    ("id", "fault", "said"),
    [
        ("messages.stream.event_lines", events(unnamed, WITH_TOOLS), "under the event line ''"),
        ("responses.stream.event_lines", events(misnamed), "response.other"),
        ("chat.stream.shape", events(unfinished, WITH_TOOLS), "the stream ends with"),
        ("chat.stream.shape", events(finished_twice), "2 finish reasons"),
        ("chat.stream.usage", events(one_more), "total_tokens"),
        ("responses.stream.indices", events(of_another_item), "msg_of_another"),
        ("responses.stream.indices", events(without_parts), "content_part.added"),
        ("responses.call.deltas", events(other_arguments), "Rome"),
        ("responses.errors.too_long", events(unnumbered), "do not rise"),
        ("messages.accepts.claude_code", events(broken_off), "with an error"),
    ],
)
def test_a_fault_of_one_kind_of_answer_is_found(
    play: Play, id: str, fault: Fault, said: str
) -> None:
    finding = found(play, id, fault)
    assert finding.outcome is CheckOutcome.FAIL, f"{finding.outcome}: {finding.message}"
    assert said in finding.message
