"""Checks of tools that arrive later, move or are restricted: the prompt keeps its prefix."""

from dovetail_verify.api_checks import check_each_api
from dovetail_verify.check import NotApplicable, require
from dovetail_verify.exchange import abbreviate
from dovetail_verify.scripted.replay import ReplayedTurns, require_exact_prefix
from dovetail_verify.scripted.requests import (
    first_request,
    followup_request,
    send_request,
    user_message,
)
from dovetail_verify.scripted.response import ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import INTERLEAVED, LOOKUP_TOOL, WRITE_TOOL
from dovetail_verify.target import Json, RecordedRequest, TargetServer

_PLACEHOLDER = "DeferredToolPlaceholder"
#: As Claude Code sends it, so that a list with deferred tools never becomes empty.
_PLACEHOLDER_TOOL: Json = {
    "name": _PLACEHOLDER,
    "description": "A placeholder.",
    "input_schema": {"type": "object", "properties": {}},
    "defer_loading": True,
}
_WRITE_DEFINITION = f"The tool {WRITE_TOOL}."
_ALLOWED: dict[str, Json] = {
    "responses": {"tools": [{"type": "function", "name": WRITE_TOOL}]},
    "chat": {
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": WRITE_TOOL}}],
        }
    },
}


async def _run_search(target: TargetServer) -> ReplayedTurns:
    """Run a session in which the result of a call refers to a deferred tool."""

    async def make(server: TargetServer) -> ReplayedTurns:
        nonce = server.new_nonce()
        body = first_request("messages", server, user_message(INTERLEAVED, nonce), stream=True)
        lookup, write = body["tools"]
        body["tools"] = [lookup, write | {"defer_loading": True}, _PLACEHOLDER_TOOL]
        first = await _send(server, "messages", body)
        again = followup_request("messages", body, first, nonce)
        text = again["messages"][-1]["content"][-1]["content"]
        again["messages"][-1]["content"][-1]["content"] = [
            {"type": "tool_reference", "tool_name": WRITE_TOOL},
            {"type": "text", "text": text},
        ]
        again["tools"] = [_PLACEHOLDER_TOOL, lookup, write | {"defer_loading": True}]
        second = await _send(server, "messages", again)
        return await _replayed(server, nonce, first, second)

    return await target.memoize("a session with a deferred tool", make)


async def _send(target: TargetServer, api: str, body: Json) -> ParsedResponse:
    exchange = await send_request(api, target, body)
    if exchange.status in (400, 422):
        raise NotApplicable(f"not supported: the server returned {exchange.status}")
    return parse_response(api, exchange)


async def _replayed(
    target: TargetServer, nonce: str, first: ParsedResponse, second: ParsedResponse
) -> ReplayedTurns:
    assert target.recording is not None
    records = await target.recording.find_requests(nonce, 2)
    return ReplayedTurns(first, second, records[0], records[-1])


@check_each_api(
    "tools.reference",
    {"messages": "TL-1"},
    title="a tool_reference shows the definition of the tool there, after the unchanged prefix",
    why="The model cannot call the tool that it searched for, or each search re-prefills the "
    "session.",
)
async def tool_reference(target: TargetServer, api: str) -> str:
    turns = await _run_search(target)
    prefix = require_exact_prefix(turns)
    before, after = turns.first_record.prompt_text, turns.second_record.prompt_text
    require(_WRITE_DEFINITION not in before, "the definition is in the prompt before the reference")
    shown = after.count(_WRITE_DEFINITION)
    require(
        shown == 1,
        f"the definition is {shown} times in the prompt after the reference",
        received=abbreviate(after[len(before) - 60 :], 700),
    )
    return prefix


@check_each_api(
    "tools.loaded",
    {"messages": "TL-1"},
    title="tool_choice accepts a tool after its reference",
    why="The client requires a call of a tool that it has loaded, and gets an error.",
)
async def loaded_tool_choice(target: TargetServer, api: str) -> str:
    turns = await _run_search(target)
    body = turns.second.exchange.request.body
    choice = {"tool_choice": {"type": "tool", "name": WRITE_TOOL}}
    exchange = await send_request(api, target, body | choice)
    require(exchange.status == 200, f"returned status {exchange.status}")
    return "accepted"


@check_each_api(
    "tools.placeholder",
    {"messages": "TL-2"},
    title="a deferred tool without a reference is not in the prompt",
    why="The model calls a tool that its client cannot run.",
)
async def hidden_placeholder(target: TargetServer, api: str) -> str:
    turns = await _run_search(target)
    for record in (turns.first_record, turns.second_record):
        require(_PLACEHOLDER not in record.prompt_text, f"{_PLACEHOLDER} is in the prompt")
    return "not in the prompt"


@check_each_api(
    "tools.allowed",
    {"responses": "TL-3", "chat": "TL-3"},
    title="allowed_tools restricts the calls, not the prompt",
    why="A tool runs that the client excluded, or each change of the list re-prefills the session.",
)
async def allowed_tools(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True)
    await _send(target, api, body)
    choice: Json = {"type": "allowed_tools", "mode": "auto", **_ALLOWED[api]}
    restricted = await _send(target, api, body | {"tool_choice": choice})
    assert target.recording is not None
    first, second = (await target.recording.find_requests(nonce, 2))[:2]
    _require_same_prompt(first, second)
    called = [part.name for part in restricted.parts_of("call")]
    require(LOOKUP_TOOL not in called, f"{LOOKUP_TOOL} is called, which is not allowed")
    return "the same prompt, no call"


@check_each_api(
    "tools.order",
    "TL-4",
    title="the order and the repetition of tools do not change the prompt",
    why="Clients list tools in the order in which their servers connect, so every session would "
    "re-prefill its history.",
)
async def tool_order(target: TargetServer, api: str) -> str:
    nonce = target.new_nonce()
    body = first_request(api, target, user_message(INTERLEAVED, nonce), stream=True)
    first = await _send(target, api, body)
    lookup, write = body["tools"]
    again = followup_request(api, body, first, nonce) | {"tools": [write, lookup, write]}
    turns = await _replayed(target, nonce, first, await _send(target, api, again))
    return require_exact_prefix(turns)


def _require_same_prompt(first: RecordedRequest, second: RecordedRequest) -> None:
    require(
        first.prompt_tokens == second.prompt_tokens,
        "the two prompts differ",
        received=abbreviate(second.prompt_text, 700),
    )


CHECKS = (
    *tool_reference,
    *loaded_tool_choice,
    *hidden_placeholder,
    *allowed_tools,
    *tool_order,
)
