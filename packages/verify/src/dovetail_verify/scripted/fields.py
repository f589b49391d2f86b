"""Checks of request fields that depend on the output: stops, a named tool, retention."""

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import NotApplicable, require
from dovetail_verify.scripted.content import require_scenario
from dovetail_verify.scripted.requests import (
    first_request,
    followup_request,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import (
    INTERLEAVED,
    LOOKUP_TOOL,
    MIXED,
    NEXT_TEXT,
    Scenario,
)
from dovetail_verify.target import Json, TargetServer

_STOP_FIELDS = {"messages": "stop_sequences", "responses": "stop", "chat": "stop"}
#: Only in the reasoning and in the arguments of the scenario.
_STOPS = ["cities to look up", '"Oslo"']
_NAMED: dict[str, Json] = {
    "messages": {"type": "tool", "name": LOOKUP_TOOL},
    "responses": {"type": "function", "name": LOOKUP_TOOL},
    "chat": {"type": "function", "function": {"name": LOOKUP_TOOL}},
}


@check_each_api(
    "fields.stop",
    "F-5",
    title="a stop sequence in reasoning or in arguments does not end the response",
    why="The response ends inside the reasoning, or a call is truncated and never runs.",
)
async def stop_only_in_text(target: TargetServer, api: str) -> str:
    parsed = await _run(target, api, MIXED, {_STOP_FIELDS[api]: _STOPS})
    return require_scenario(parsed, MIXED)


@check_each_api(
    "fields.named-tool",
    "F-6",
    title="a named tool is called once, unless parallel calls are requested",
    why="A client that requested one call runs the tool several times.",
)
async def named_tool_once(target: TargetServer, api: str) -> str:
    parsed = await _run(target, api, INTERLEAVED, {"tool_choice": _NAMED[api]})
    calls = parsed.parts_of("call")
    require(len(calls) == 1, f"expected 1 call, received {len(calls)}")
    return "one call"


@check_each_api(
    "fields.retention",
    {"messages": "F-10"},
    title="reasoning_retention decides whether finished turns keep their reasoning",
    why="The model loses the plan that explains its calls, or reads reasoning that the operator "
    "wants to drop.",
)
async def reasoning_retention(target: TargetServer, api: str) -> str:
    retained = {value: await _keeps_reasoning(target, api, value) for value in ("all", "none")}
    require(retained["all"], "`all`: the reasoning is not in the prompt")
    require(not retained["none"], "`none`: the reasoning is in the prompt")
    return "kept with `all`, dropped with `none`"


async def _keeps_reasoning(target: TargetServer, api: str, value: str) -> bool:
    """Return whether a prompt has the reasoning of a turn before the newest user message."""
    nonce = target.new_nonce()
    retention = {"nvext": {"reasoning_retention": value}}
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True) | retention
    first = parse_response(api, await send_request(api, target, body))
    body = followup_request(api, body, first, nonce)
    body["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": NEXT_TEXT}]},
        {"role": "user", "content": f"Thank you, {nonce}."},
    ]
    exchange = (await send_request(api, target, body)).require_ok()
    if any("reasoning_retention" in text for text in exchange.headers.values()):
        raise NotApplicable("the server reports that it ignores reasoning_retention")
    assert target.recording is not None
    prompt = (await target.recording.find_requests(f"Thank you, {nonce}."))[0].prompt_text
    return first.text_of("reasoning")[:20] in prompt


async def _run(target: TargetServer, api: str, scenario: Scenario, fields: Json) -> ParsedResponse:
    """Run a scenario with these fields, without a statement on parallel calls."""
    body = first_request(api, target, user_message(scenario, target.new_nonce()), stream=True)
    body.pop("parallel_tool_calls", None)
    exchange = await send_request(api, target, {**body, **fields})
    if 400 <= exchange.status < 500:
        raise NotApplicable(f"the server rejects {', '.join(fields)}")
    return parse_response(api, exchange)


CHECKS = (*stop_only_in_text, *named_tool_once, *reasoning_retention)
