"""Checks of tool calls: streamed as generated, ended promptly, never completed by guessing."""

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

MIN_PAUSE_SECONDS = PAUSE_SECONDS / 2  # a loaded machine delivers late
MIN_ARGUMENT_CHUNKS = 20  # the engine sends the argument in hundreds
_CLEAN_END = {"messages": "message_stop", "responses": "response.completed", "chat": "stop"}
_TRUNCATED_STATUS = {"messages": "max_tokens", "responses": "incomplete", "chat": "length"}


@check_each_api(
    "call.at-once",
    {"messages": "CC-12", "responses": "CX-3", "chat": "AG-12"},
    title="the server ends a call as soon as the model has ended it, without waiting for tokens",
    why="Claude Code and Codex start a tool at the end of its call, so a delay is idle time.",
)
async def call_ends_promptly(target: TargetServer, api: str) -> str:
    return await _retry_once(_judge_early_end, target, api)


async def _retry_once(
    judge: Callable[[TargetServer, str], Awaitable[str]], target: TargetServer, api: str
) -> str:
    """Run a timing check again if it fails: a single failure may be due to a busy machine."""
    try:
        return await judge(target, api)
    except CheckFailed:
        return await judge(target, api)


async def _judge_early_end(target: TargetServer, api: str) -> str:
    parsed = await rerun_scenario(api, target, PAUSED)
    calls = parsed.parts_of("call")
    require(len(calls) == 2, f"expected 2 calls, received {len(calls)}")
    first, behind = calls[0], _first_output_after(parsed, calls[0])
    require(first.ended_at is not None, "the first call did not end")
    assert first.ended_at is not None
    waited = behind - first.ended_at
    require(
        waited >= MIN_PAUSE_SECONDS,
        f"the model paused for {PAUSE_SECONDS} s after the call, but the call ended {waited:.2f} s "
        "before the next output",
    )
    return f"{waited:.1f} s before the next output"


def _first_output_after(parsed: ParsedResponse, call: OutputPart) -> float:
    """Return the arrival time of the first output after the call."""
    texts = [part.text for part in PAUSED.parts[2:] if part.kind == "reasoning"]
    times = [
        part.first_chunk_at for part in parsed.parts if part is not call and part.kind == "call"
    ]
    times += [
        part.first_chunk_at for part in parsed.parts_of("reasoning") if part.text.strip() in texts
    ]
    known = [time for time in times if time is not None]
    if not known:
        raise CheckFailed("the output after the call was not streamed")
    return min(known)


@check_each_api(
    "argument.pieces",
    "R5",
    title="an argument of 4,000 tokens arrives in many chunks that add up to the model's own JSON",
    why="An agent that shows a file while it is generated has nothing to show.",
)
async def argument_chunks(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, LONG)
    call = _only_call(parsed, LONG)
    require(
        call.chunk_count >= MIN_ARGUMENT_CHUNKS,
        f"the argument arrived in {call.chunk_count} chunk(s)",
    )
    return f"{call.chunk_count} chunks"


@check_each_api(
    "argument.early",
    "R5",
    title="the first half of an argument arrives while the model generates the second half",
    why="While the model generates a file of a few thousand lines, the agent seems to hang.",
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
    require(share > 0.25, f"{share:.0%} of the argument had arrived when the model paused halfway")
    return f"{share:.0%} had arrived at the pause"


@check_each_api(
    "argument.markers",
    "R4",
    title="markers inside an argument are data",
    why="An agent that edits a chat template, or a parser of model output, writes damaged files.",
)
async def argument_markers(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MARKERS), MARKERS)


@check_each_api(
    "call.cut",
    "R6",
    title="a call truncated by the token limit is reported as truncated, not completed by guessing",
    why="The agent writes half a file as if it were complete.",
)
async def truncated_call(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, TRUNCATED)
    require(
        parsed.finish_reason == _TRUNCATED_STATUS[api],
        f"the response ended with {parsed.finish_reason!r}",
    )
    for call in parsed.parts_of("call"):
        require(not _is_complete(call), f"a truncated call was completed: {call.text[-60:]!r}")
    return f"ended with {parsed.finish_reason}"


def _is_complete(call: OutputPart) -> bool:
    try:
        return "content" in call.input
    except CheckFailed:
        return False


@check_each_api(
    "failure.stream",
    {"messages": "CC-26", "responses": "CX-22", "chat": "AG-11"},
    title="a stream ends with an error if the engine fails",
    why="A normal end after reasoning is an empty success: the agent stops without an explanation.",
)
async def stream_failure(target: TargetServer, api: str) -> str:
    body = first_request(api, target, user_message(FAILING, target.new_nonce()), stream=True)
    exchange = await send_request(api, target, body)
    if exchange.status >= 500:
        return f"rejected with {exchange.status}"
    require(exchange.status == 200, f"returned status {exchange.status}")
    types = [frame.type for frame in exchange.frames]
    finished = [c.get("finish_reason") for e in exchange.events for c in e.get("choices") or []]
    require(_CLEAN_END[api] not in types, f"the stream ended with {_CLEAN_END[api]}")
    require(not any(finished), f"the stream ended with finish_reason {finished[-1:]}")
    expected = "response.failed" if api == "responses" else "error"
    shown = expected in types or any("error" in event for event in exchange.events)
    require(shown, f"the stream has no {expected} and ended with {types[-1:]}")
    return expected


@check_each_api(
    "failure.whole",
    {"messages": "CC-15", "responses": "CX-19", "chat": "AG-11"},
    title="a non-streaming response is an error if the engine fails",
    why="Agents act on half a response that looks complete, but retry a 5xx.",
)
async def body_failure(target: TargetServer, api: str) -> str:
    body = first_request(api, target, user_message(FAILING, target.new_nonce()), stream=False)
    exchange = await send_request(api, target, body)
    require(exchange.status >= 500, f"returned status {exchange.status}")
    require("error" in exchange.json, "the body has no `error`")
    return f"status {exchange.status}"


@check_each_api(
    "hang-up",
    "WB-5",
    title="the engine stops when the client disconnects",
    why="A user who presses Escape pays for the rest of the response and waits for it.",
)
async def client_disconnect(target: TargetServer, api: str) -> str:
    return await _retry_once(_judge_generation_stopped, target, api)


async def _judge_generation_stopped(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(PAUSED_ARGUMENT, nonce), stream=True)
    async with target.open_stream(SentRequest("POST", API_PATHS[api], body)) as (response, _):
        require(response.status == 200, f"returned status {response.status}")
        await anext(response.iter_chunks())
    assert target.recording is not None
    record = (await target.recording.find_requests(nonce))[0]
    require(LAST_LINE not in record.output_text, "the engine generated the complete output")
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
