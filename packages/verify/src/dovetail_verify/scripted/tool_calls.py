"""Checks of calls: complete the moment they are, streamed as they are written, never guessed."""

from collections.abc import Awaitable, Callable

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import Check, CheckFailed, require
from dovetail_verify.exchange import SentRequest
from dovetail_verify.scripted.content import require_parts, require_scenario
from dovetail_verify.scripted.requests import (
    first_request,
    rerun_scenario,
    run_scenario,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import OutputPart, ParsedResponse
from dovetail_verify.scripted.scenarios import (
    FAILING,
    LAST_LINE,
    LONG,
    MARKERS,
    PAUSE_SECONDS,
    PAUSED,
    PAUSED_ARGUMENT,
    TRUNCATED,
    Scenario,
    ScriptedPart,
)
from dovetail_verify.target import API_PATHS, TargetServer

MIN_PAUSE_SECONDS = PAUSE_SECONDS / 2  # of the pause must be seen: machines under load are late
MIN_ARGUMENT_CHUNKS = 20  # pieces of an argument that the engine gives in hundreds
_CLEAN_END = {"messages": "message_stop", "responses": "response.completed", "chat": "stop"}
_TRUNCATED_STATUS = {"messages": "max_tokens", "responses": "incomplete", "chat": "length"}


@check_each_api(
    "call.at-once",
    {"messages": "CC-12", "responses": "CX-3", "chat": "AG-12"},
    title="a call ends when the model has ended it, while the model is silent",
    why="Claude Code and Codex start a tool at the end of its call: every second that the server "
    "sits on it is a second in which nothing runs.",
)
async def call_ends_promptly(target: TargetServer, api: str) -> str:
    return await _retry_once(_judge_early_end, target, api)


async def _retry_once(
    judge: Callable[[TargetServer, str], Awaitable[str]], target: TargetServer, api: str
) -> str:
    """A pause that was not seen is a fault the second time: once may be a busy machine."""
    try:
        return await judge(target, api)
    except CheckFailed:
        return await judge(target, api)


async def _judge_early_end(target: TargetServer, api: str) -> str:
    parsed = await rerun_scenario(api, target, PAUSED)
    calls = parsed.parts_of("call")
    require(len(calls) == 2, f"{len(calls)} calls came")
    first, behind = calls[0], _first_output_after(parsed, calls[0])
    require(first.ended_at is not None, "the first call was never ended")
    assert first.ended_at is not None
    waited = behind - first.ended_at
    require(
        waited >= MIN_PAUSE_SECONDS,
        f"the model paused {PAUSE_SECONDS} s behind the call, and it ended {waited:.2f} s "
        "before the rest",
    )
    return f"{waited:.1f} s before the rest"


def _first_output_after(parsed: ParsedResponse, call: OutputPart) -> float:
    """When something that the model said behind the call was shown."""
    texts = [part.text for part in PAUSED.parts[2:] if part.kind == "thought"]
    times = [
        part.first_chunk_at for part in parsed.parts if part is not call and part.kind == "call"
    ]
    times += [
        part.first_chunk_at for part in parsed.parts_of("thought") if part.text.strip() in texts
    ]
    known = [time for time in times if time is not None]
    if not known:
        raise CheckFailed("what the model said behind the call was not streamed")
    return min(known)


@check_each_api(
    "argument.pieces",
    "R5",
    title="an argument of 4,000 tokens comes in many pieces that join to the model's own JSON",
    why="An agent that shows a file while it is written has nothing to show.",
)
async def argument_chunks(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, LONG)
    call = _only_call(parsed, LONG)
    require(
        call.chunk_count >= MIN_ARGUMENT_CHUNKS, f"the argument came in {call.chunk_count} piece(s)"
    )
    return f"{call.chunk_count} pieces"


@check_each_api(
    "argument.early",
    "R5",
    title="half an argument is shown while the model is still at the other half",
    why="A file of some thousand lines looks like a hanging agent for minutes.",
)
async def argument_streams_early(target: TargetServer, api: str) -> str:
    return await _retry_once(_judge_half_argument, target, api)


async def _judge_half_argument(target: TargetServer, api: str) -> str:
    parsed = await rerun_scenario(api, target, PAUSED_ARGUMENT)
    call = _only_call(parsed, PAUSED_ARGUMENT)
    require(call.last_chunk_at is not None, "the argument was not streamed")
    assert call.last_chunk_at is not None
    before = [
        length for at, length in call.chunk_times if call.last_chunk_at - at >= MIN_PAUSE_SECONDS
    ]
    share = max(before, default=0) / len(call.text)
    require(share > 0.25, f"{share:.0%} of the argument had come when the model paused half way")
    return f"{share:.0%} had come at the pause"


@check_each_api(
    "argument.markers",
    "R4",
    title="markers inside an argument are data",
    why="An agent that works on a chat template, or on this very page, loses its file.",
)
async def argument_markers(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MARKERS), MARKERS)


@check_each_api(
    "call.cut",
    "R6",
    title="a call that the limit cut is told as cut, and never completed by guessing",
    why="A file cut in the middle and written as if it were whole is lost work.",
)
async def truncated_call(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, TRUNCATED)
    require(
        parsed.finish_reason == _TRUNCATED_STATUS[api],
        f"the answer ended as {parsed.finish_reason!r}",
    )
    for call in parsed.parts_of("call"):
        require(not _is_complete(call), f"a cut call came as a whole one: {call.text[-60:]!r}")
    return f"ended as {parsed.finish_reason}"


def _is_complete(call: OutputPart) -> bool:
    try:
        return "content" in call.input
    except CheckFailed:
        return False


@check_each_api(
    "failure.stream",
    {"messages": "CC-26", "responses": "CX-22", "chat": "AG-11"},
    title="an engine that fails in the middle ends the stream with an error",
    why="A clean end behind a thought is a silent empty success: the agent stops working, and "
    "nobody knows why.",
)
async def stream_failure(target: TargetServer, api: str) -> str:
    body = first_request(api, target, user_message(FAILING, target.new_nonce()), stream=True)
    exchange = await send_request(api, target, body)
    if exchange.status >= 500:
        return f"refused with {exchange.status}"
    require(exchange.status == 200, f"answered with status {exchange.status}")
    types = [frame.type for frame in exchange.frames]
    finished = [c.get("finish_reason") for e in exchange.events for c in e.get("choices") or []]
    require(_CLEAN_END[api] not in types, f"the stream ended with {_CLEAN_END[api]}")
    require(not any(finished), f"the stream ended with finish_reason {finished[-1:]}")
    expected = "response.failed" if api == "responses" else "error"
    shown = expected in types or any("error" in event for event in exchange.events)
    require(shown, f"no {expected} was told, the stream ended with {types[-1:]}")
    return expected


@check_each_api(
    "failure.whole",
    {"messages": "CC-15", "responses": "CX-19", "chat": "AG-11"},
    title="an engine that fails in the middle makes a whole answer an error",
    why="Half an answer that looks whole is acted upon; a 5xx is tried again.",
)
async def body_failure(target: TargetServer, api: str) -> str:
    body = first_request(api, target, user_message(FAILING, target.new_nonce()), stream=False)
    exchange = await send_request(api, target, body)
    require(exchange.status >= 500, f"answered with status {exchange.status}")
    require("error" in exchange.json, "no error in the body")
    return f"status {exchange.status}"


@check_each_api(
    "hang-up",
    "WB-5",
    title="the engine stops when the client hangs up",
    why="A user who presses Escape pays for the rest of the answer, and waits behind it.",
)
async def client_disconnect(target: TargetServer, api: str) -> str:
    return await _retry_once(_judge_generation_stopped, target, api)


async def _judge_generation_stopped(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PAUSED_ARGUMENT, nonce), stream=True)
    async with target.open_stream(SentRequest("POST", API_PATHS[api], body)) as (response, _):
        require(response.status == 200, f"answered with status {response.status}")
        await anext(response.iter_chunks())
    assert target.recording is not None
    record = (await target.recording.find_requests(nonce))[0]
    require(LAST_LINE not in record.output_text, "the engine went on to the end of its answer")
    return f"stopped after {len(record.output_tokens)} tokens"


def _only_call(parsed: ParsedResponse, scenario: Scenario) -> OutputPart:
    calls: list[ScriptedPart] = [part for part in scenario.parts if part.kind == "call"]
    require_parts(parsed.parts_of("call"), calls)
    return parsed.parts_of("call")[0]


CHECKS: tuple[Check, ...] = (
    *call_ends_promptly,
    *argument_chunks,
    *argument_streams_early,
    *argument_markers,
    *truncated_call,
    *stream_failure,
    *body_failure,
    *client_disconnect,
)
