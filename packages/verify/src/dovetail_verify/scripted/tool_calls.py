"""Checks of calls: complete the moment they are, streamed as they are written, never guessed."""

from collections.abc import Awaitable, Callable

from dovetail_verify.check import Check, Failed, require
from dovetail_verify.each_api import each_api
from dovetail_verify.exchange import Sent
from dovetail_verify.scripted.content import require_same, same
from dovetail_verify.scripted.requests import ask, play, play_again, question, words
from dovetail_verify.scripted.response import Shape, Shown
from dovetail_verify.scripted.scenarios import (
    CUT,
    FAILING,
    HALF_WAY,
    LAST_LINE,
    LONG,
    MARKERS,
    PACED,
    PAUSE,
    Part,
    Scene,
)
from dovetail_verify.target import PATHS, Stage

SEEN = PAUSE / 2  # of the pause must be seen: machines under load are late
FEW = 20  # pieces of an argument that the engine gives in hundreds
_CLEAN = {"messages": "message_stop", "responses": "response.completed", "chat": "stop"}
_CUT_SHORT = {"messages": "max_tokens", "responses": "incomplete", "chat": "length"}


@each_api(
    "call.at-once",
    {"messages": "CC-12", "responses": "CX-3", "chat": "AG-12"},
    title="a call ends when the model has ended it, while the model is silent",
    why="Claude Code and Codex start a tool at the end of its call: every second that the server "
    "sits on it is a second in which nothing runs.",
)
async def at_once(stage: Stage, api: str) -> str:
    return await _in_two_tries(_ended_early, stage, api)


async def _in_two_tries(
    judge: Callable[[Stage, str], Awaitable[str]], stage: Stage, api: str
) -> str:
    """A pause that was not seen is a fault the second time: once may be a busy machine."""
    try:
        return await judge(stage, api)
    except Failed:
        return await judge(stage, api)


async def _ended_early(stage: Stage, api: str) -> str:
    shape = await play_again(api, stage, PACED)
    calls = shape.of("call")
    require(len(calls) == 2, f"{len(calls)} calls came")
    first, behind = calls[0], _first_after(shape, calls[0])
    require(first.ended is not None, "the first call was never ended")
    assert first.ended is not None
    waited = behind - first.ended
    require(
        waited >= SEEN,
        f"the model paused {PAUSE} s behind the call, and it ended {waited:.2f} s before the rest",
    )
    return f"{waited:.1f} s before the rest"


def _first_after(shape: Shape, call: Shown) -> float:
    """When something that the model said behind the call was shown."""
    texts = [part.text for part in PACED.parts[2:] if part.kind == "thought"]
    times = [part.begun for part in shape.parts if part is not call and part.kind == "call"]
    times += [part.begun for part in shape.of("thought") if part.text.strip() in texts]
    known = [time for time in times if time is not None]
    if not known:
        raise Failed("what the model said behind the call was not streamed")
    return min(known)


@each_api(
    "argument.pieces",
    "R5",
    title="an argument of 4,000 tokens comes in many pieces that join to the model's own JSON",
    why="An agent that shows a file while it is written has nothing to show.",
)
async def pieces(stage: Stage, api: str) -> str:
    shape = await play(api, stage, LONG)
    call = _only_call(shape, LONG)
    require(call.pieces >= FEW, f"the argument came in {call.pieces} piece(s)")
    return f"{call.pieces} pieces"


@each_api(
    "argument.early",
    "R5",
    title="half an argument is shown while the model is still at the other half",
    why="A file of some thousand lines looks like a hanging agent for minutes.",
)
async def early(stage: Stage, api: str) -> str:
    return await _in_two_tries(_half_shown, stage, api)


async def _half_shown(stage: Stage, api: str) -> str:
    shape = await play_again(api, stage, HALF_WAY)
    call = _only_call(shape, HALF_WAY)
    require(call.grown is not None, "the argument was not streamed")
    assert call.grown is not None
    before = [length for at, length in call.at_pieces if call.grown - at >= SEEN]
    share = max(before, default=0) / len(call.text)
    require(share > 0.25, f"{share:.0%} of the argument had come when the model paused half way")
    return f"{share:.0%} had come at the pause"


@each_api(
    "argument.markers",
    "R4",
    title="markers inside an argument are data",
    why="An agent that works on a chat template, or on this very page, loses its file.",
)
async def markers(stage: Stage, api: str) -> str:
    return same(await play(api, stage, MARKERS), MARKERS)


@each_api(
    "call.cut",
    "R6",
    title="a call that the limit cut is told as cut, and never completed by guessing",
    why="A file cut in the middle and written as if it were whole is lost work.",
)
async def cut(stage: Stage, api: str) -> str:
    shape = await play(api, stage, CUT)
    require(shape.stop == _CUT_SHORT[api], f"the answer ended as {shape.stop!r}")
    for call in shape.of("call"):
        require(not _is_whole(call), f"a cut call came as a whole one: {call.text[-60:]!r}")
    return f"ended as {shape.stop}"


def _is_whole(call: Shown) -> bool:
    try:
        return "content" in call.input
    except Failed:
        return False


@each_api(
    "failure.stream",
    {"messages": "CC-26", "responses": "CX-22", "chat": "AG-11"},
    title="an engine that fails in the middle ends the stream with an error",
    why="A clean end behind a thought is a silent empty success: the agent stops working, and "
    "nobody knows why.",
)
async def failure(stage: Stage, api: str) -> str:
    body = question(api, stage, words(FAILING, stage.unique()), stream=True)
    exchange = await ask(api, stage, body)
    if exchange.status >= 500:
        return f"refused with {exchange.status}"
    require(exchange.status == 200, f"answered with status {exchange.status}")
    types = [frame.type for frame in exchange.frames]
    finished = [c.get("finish_reason") for e in exchange.events for c in e.get("choices") or []]
    require(_CLEAN[api] not in types, f"the stream ended with {_CLEAN[api]}")
    require(not any(finished), f"the stream ended with finish_reason {finished[-1:]}")
    told = "response.failed" if api == "responses" else "error"
    shown = told in types or any("error" in event for event in exchange.events)
    require(shown, f"no {told} was told, the stream ended with {types[-1:]}")
    return told


@each_api(
    "failure.whole",
    {"messages": "CC-15", "responses": "CX-19", "chat": "AG-11"},
    title="an engine that fails in the middle makes a whole answer an error",
    why="Half an answer that looks whole is acted upon; a 5xx is tried again.",
)
async def failure_whole(stage: Stage, api: str) -> str:
    body = question(api, stage, words(FAILING, stage.unique()), stream=False)
    exchange = await ask(api, stage, body)
    require(exchange.status >= 500, f"answered with status {exchange.status}")
    require("error" in exchange.json, "no error in the body")
    return f"status {exchange.status}"


@each_api(
    "hang-up",
    "WB-5",
    title="the engine stops when the client hangs up",
    why="A user who presses Escape pays for the rest of the answer, and waits behind it.",
)
async def hang_up(stage: Stage, api: str) -> str:
    return await _in_two_tries(_stopped, stage, api)


async def _stopped(stage: Stage, api: str) -> str:
    nonce = stage.unique()
    body = question(api, stage, words(HALF_WAY, nonce), stream=True)
    async with stage.open(Sent("POST", PATHS[api], body)) as (reply, _):
        require(reply.status == 200, f"answered with status {reply.status}")
        await anext(reply.iter_chunks())
    assert stage.recording is not None
    heard = (await stage.recording.heard(nonce))[0]
    require(LAST_LINE not in heard.said, "the engine went on to the end of its answer")
    return f"stopped after {len(heard.output)} tokens"


def _only_call(shape: Shape, scene: Scene) -> Shown:
    calls: list[Part] = [part for part in scene.parts if part.kind == "call"]
    require_same(shape.of("call"), calls)
    return shape.of("call")[0]


CHECKS: tuple[Check, ...] = (
    *at_once,
    *pieces,
    *early,
    *markers,
    *cut,
    *failure,
    *failure_whole,
    *hang_up,
)
