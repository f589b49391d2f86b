"""Checks of the content that a client receives: the model's output, complete and in order."""

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
    "Agents show reasoning next to its call; a regrouped turn is also replayed regrouped, so the "
    "model reads a history that it did not generate."
)
DISPATCH_EVENT = "tool_call_dispatch"


@check_each_api(
    "order.stream",
    "R2",
    title="a stream keeps the order reasoning, call, reasoning, call",
    why=_ORDER_IMPACT,
)
async def stream_order(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, INTERLEAVED), INTERLEAVED)


@check_each_api(
    "order.whole",
    {"messages": "R2", "responses": "R2"},
    title="a non-streaming response keeps the order reasoning, call, reasoning, call",
    why=_ORDER_IMPACT,
)
async def body_order(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, INTERLEAVED, stream=False), INTERLEAVED)


@check_each_api(
    "order.fields",
    {"chat": "R1"},
    title="a non-streaming response has both reasoning spans and both calls, and no text",
    why="If the response differs from the stream, an agent behaves differently without streaming.",
)
async def body_fields(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, INTERLEAVED, stream=False)
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    require_parts(parsed.parts_of("call"), calls)
    reasoning = [part.text for part in INTERLEAVED.parts if part.kind == "reasoning"]
    found = [parsed.text_of("reasoning").find(text) for text in reasoning]
    require(
        -1 not in found and found == sorted(found), f"reasoning: {parsed.text_of('reasoning')!r}"
    )
    require(
        not parsed.text_of("text"),
        f"text that the model did not generate: {parsed.text_of('text')!r}",
    )
    return "2 reasoning spans, 2 calls"


@check_each_api(
    "order.text",
    "R2",
    title="text between reasoning and calls keeps its position",
    why="Text such as 'now the tests' makes sense only before the call that it announces.",
)
async def text_position(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MIXED), MIXED)


@check_each_api(
    "white-space",
    {"messages": "CC-9", "responses": "R8", "chat": "R8"},
    title="whitespace that only separates parts is not text",
    why="Claude Code replays a turn with an empty text block in a different order, so its tokens "
    "are re-prefilled.",
)
async def whitespace(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, WHITESPACE)
    blank = [part.text for part in parsed.parts_of("text") if not part.text.strip()]
    require(not blank, f"text that is only whitespace: {blank}")
    require_parts(
        parsed.parts_of("call"), [part for part in WHITESPACE.parts if part.kind == "call"]
    )
    return "no blank text"


@check_each_api(
    "orphan-closer",
    "R3",
    title="a repeated end marker of reasoning does not appear in the text",
    why="Users see </think> in the middle of a response, and agents write it into files.",
)
async def orphan_marker(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, ORPHAN_MARKER), ORPHAN_MARKER)


@check_each_api(
    "malformed-call",
    "R7",
    title="a malformed call remains text",
    why="If the text disappears or the request fails, the agent cannot continue.",
)
async def malformed_call(target: TargetServer, api: str) -> str:
    parsed = await run_scenario(api, target, MALFORMED)
    text = parsed.text_of("text")
    require(MALFORMED.parts[1].text in text, f"the malformed call is not in the text: {text!r}")
    require(not parsed.parts_of("call"), "the malformed call was returned as a call")
    return "the malformed call is in the text"


@check_each_api(
    "letters",
    "R11",
    title="characters that are split across tokens arrive complete",
    why="Accented names and emoji in files are permanently damaged.",
)
async def multibyte(target: TargetServer, api: str) -> str:
    return require_scenario(await run_scenario(api, target, MULTIBYTE), MULTIBYTE)


@check_each_api(
    "dispatch",
    "AG-12",
    title="tool_call_dispatch arrives before the output that follows the call",
    why="The event exists so that a tool can start immediately; at the end it has no use.",
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
        raise NotApplicable("the server does not support dispatch events, or they are disabled")
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    names = [frame.json["tool_call"]["function"]["name"] for _, frame in dispatched]
    require(names == [call.name for call in calls], f"dispatched: {names}")
    before = parse_response(api, replace(exchange, frames=exchange.frames[: dispatched[0][0]]))
    later = INTERLEAVED.parts[2].text[:4]
    require(later not in before.text_of("reasoning"), "the first call was dispatched too late")
    return f"{len(dispatched)} calls dispatched"


def require_scenario(parsed: ParsedResponse, scenario: Scenario) -> str:
    """Fail the check unless the client received exactly the parts of a scenario, in order.

    Text that is only whitespace is ignored here, because it has its own check.
    """
    require(not parsed.violations, "; ".join(dict.fromkeys(parsed.violations)))
    shown = [part for part in parsed.parts if part.kind != "text" or part.text.strip()]
    require_parts(shown, scenario.parts)
    return ", ".join(part.kind for part in shown)


def require_parts(shown: Sequence[OutputPart], parts: Sequence[ScriptedPart]) -> None:
    """Compare parts with the script, except for whitespace around them, which templates add."""
    described = [_describe_part(one.kind, one.name, one.text) for one in shown]
    kinds = [(one.kind, one.name) for one in shown]
    require(
        kinds == [(part.kind, part.name) for part in parts], f"received: {'; '.join(described)}"
    )
    for one, part in zip(shown, parts, strict=True):
        if part.kind == "call":
            require(one.input == part.arguments, f"the input of a call is {one.text[:300]}")
        else:
            require(one.text.strip() == part.text, f"the {part.kind} part is {one.text[:300]!r}")


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
