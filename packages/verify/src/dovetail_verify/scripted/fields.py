"""Checks of request fields that depend on the output: stop sequences and a named tool."""

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import NotApplicable, require
from dovetail_verify.scripted.content import require_scenario
from dovetail_verify.scripted.requests import first_request, send_request, user_message
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import INTERLEAVED, LOOKUP_TOOL, MIXED, Scenario
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


async def _run(target: TargetServer, api: str, scenario: Scenario, fields: Json) -> ParsedResponse:
    """Run a scenario with these fields, without a statement on parallel calls."""
    body = first_request(api, target, user_message(scenario, target.new_nonce()), stream=True)
    body.pop("parallel_tool_calls", None)
    exchange = await send_request(api, target, {**body, **fields})
    if 400 <= exchange.status < 500:
        raise NotApplicable(f"the server rejects {', '.join(fields)}")
    return parse_response(api, exchange)


CHECKS = (*stop_only_in_text, *named_tool_once)
