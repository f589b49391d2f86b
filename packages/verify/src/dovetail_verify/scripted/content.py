"""Checks of what a client is shown: everything, in the model's order, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import Check, NotApplicable, require
from dovetail_verify.scripted.requests import (
    first_request,
    run_scenario,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import OutputPart, ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import (
    INTERLEAVED,
    MALFORMED,
    MIXED,
    MULTIBYTE,
    ORPHAN_MARKER,
    WHITESPACE,
    Scenario,
    ScriptedPart,
)
from dovetail_verify.target import TargetServer

_ORDER_IMPACT = (
    "Agents show each thought with its call; a grouped turn goes back grouped, and the model "
)
_ORDER_IMPACT += "reads a history that it never wrote."
DISPATCH_EVENT = "tool_call_dispatch"


@check_each_api(
    "order.stream",
    "R2",
    title="think, call, think, call is streamed in this order",
    why=_ORDER_IMPACT,
)
async def stream_order(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, INTERLEAVED), INTERLEAVED)


@check_each_api(
    "order.whole",
    {"messages": "R2", "responses": "R2"},
    title="think, call, think, call is in this order in a whole answer",
    why=_ORDER_IMPACT,
)
async def body_order(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, INTERLEAVED, stream=False), INTERLEAVED)


@check_each_api(
    "order.fields",
    {"chat": "R1"},
    title="both thoughts and both calls are in a whole answer, with no text beside them",
    why="A whole answer that differs from its stream makes an agent behave differently without "
    "streaming.",
)
async def body_fields(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, INTERLEAVED, stream=False)
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    require_parts(parsed.parts_of("call"), calls)
    reasoning = [part.text for part in INTERLEAVED.parts if part.kind == "thought"]
    found = [parsed.text_of("thought").find(text) for text in reasoning]
    require(-1 not in found and found == sorted(found), f"thoughts: {parsed.text_of('thought')!r}")
    require(not parsed.text_of("text"), f"text that nobody wrote: {parsed.text_of('text')!r}")
    return "2 thoughts, 2 calls"


@check_each_api(
    "order.text",
    "R2",
    title="text between thoughts and calls stays where it was",
    why="Words such as 'now the tests' stand before the call they announce, or make no sense.",
)
async def text_position(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MIXED), MIXED)


@check_each_api(
    "white-space",
    {"messages": "CC-9", "responses": "R8", "chat": "R8"},
    title="white space that only separates parts is no text",
    why="Claude Code sends a turn with an empty text block back in another order, and the cached "
    "prefix is lost.",
)
async def whitespace(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, WHITESPACE)
    blank = [part.text for part in parsed.parts_of("text") if not part.text.strip()]
    require(not blank, f"text of white space alone: {blank}")
    require_parts(
        parsed.parts_of("call"), [part for part in WHITESPACE.parts if part.kind == "call"]
    )
    return "no blank text"


@check_each_api(
    "orphan-closer",
    "R3",
    title="a thought closed twice leaves no marker in the text",
    why="Users see </think> in the middle of an answer, and agents write it into files.",
)
async def orphan_marker(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, ORPHAN_MARKER), ORPHAN_MARKER)


@check_each_api(
    "malformed-call",
    "R7",
    title="what opens like a call and is none stays text",
    why="Words that vanish, or a request that fails, leave the agent with nothing to go on with.",
)
async def malformed_call(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, MALFORMED)
    text = parsed.text_of("text")
    require(MALFORMED.parts[1].text in text, f"the words are not in the text: {text!r}")
    require(not parsed.parts_of("call"), "a call was made of words")
    return "the words are there"


@check_each_api(
    "letters",
    "R11",
    title="characters that are split over tokens come whole",
    why="A name with an accent, or an emoji in a file, is damaged for good.",
)
async def multibyte(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MULTIBYTE), MULTIBYTE)


@check_each_api(
    "dispatch",
    "AG-12",
    title="tool_call_dispatch comes before what the model says after the call",
    why="The side channel exists so that a tool can start at once; at the end it is worth nothing.",
)
async def dispatch(target: TargetServer, api: str) -> str:
    body = first_request(api, target, user_message(INTERLEAVED, target.new_nonce()), stream=True)
    exchange = (
        await send_request(api, target, body, x_dovetail_dispatch="tools, reasoning")
    ).require_ok()
    dispatched = [
        (at, frame) for at, frame in enumerate(exchange.frames) if frame.event == DISPATCH_EVENT
    ]
    if not dispatched:
        raise NotApplicable("dispatch events are not offered, or not switched on")
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    names = [frame.json["tool_call"]["function"]["name"] for _, frame in dispatched]
    require(names == [call.name for call in calls], f"dispatched: {names}")
    before = parse_response(api, replace(exchange, frames=exchange.frames[: dispatched[0][0]]))
    later = INTERLEAVED.parts[2].text[:4]
    require(later not in before.text_of("thought"), "the first call was dispatched too late")
    return f"{len(dispatched)} calls dispatched"


def require_scenario(parsed: ParsedResponse, scenario: Scenario) -> str:
    """Fails unless a client was shown the parts of a scene in their order, and nothing else.

    Text of white space alone has a check of its own.
    """
    require(not parsed.violations, "; ".join(dict.fromkeys(parsed.violations)))
    shown = [part for part in parsed.parts if part.kind != "text" or part.text.strip()]
    require_parts(shown, scenario.parts)
    return ", ".join(part.kind for part in shown)


def require_parts(shown: Sequence[OutputPart], parts: Sequence[ScriptedPart]) -> None:
    """Thoughts and text may have white space around them: templates put it there."""
    described = [_describe_part(one.kind, one.name, one.text) for one in shown]
    kinds = [(one.kind, one.name) for one in shown]
    require(kinds == [(part.kind, part.name) for part in parts], f"shown: {'; '.join(described)}")
    for one, part in zip(shown, parts, strict=True):
        if part.kind == "call":
            require(one.input == part.arguments, f"the input of a call is {one.text[:300]}")
        else:
            require(one.text.strip() == part.text, f"a {part.kind} is {one.text[:300]!r}")


def _describe_part(kind: str, name: str, text: str) -> str:
    return f"{kind} {name}" if name else f"{kind} {text[:40]!r}"


CHECKS: tuple[Check, ...] = (
    *stream_order,
    *body_order,
    *body_fields,
    *text_position,
    *whitespace,
    *orphan_marker,
    *malformed_call,
    *multibyte,
    *dispatch,
)
