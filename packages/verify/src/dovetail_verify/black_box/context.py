"""Checks of context management: edits are applied and measured, and compaction replaces history."""

from dovetail_verify.black_box.errors import require_accepted
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import MESSAGES, TOOL_DESCRIPTION, TOOL_NAME, TOOL_PARAMETERS, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_CALLS = 4
_RETAINED_CALLS = 1
_RESULT = "It is 12 degrees with light rain and some wind. " * 8
_TOOL = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "input_schema": TOOL_PARAMETERS}
_EDIT = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 2},
    "keep": {"type": "tool_uses", "value": _RETAINED_CALLS},
}
_THINKING_EDIT = {
    "type": "clear_thinking_20251015",
    "keep": {"type": "thinking_turns", "value": _RETAINED_CALLS},
}
_COMPACT_EDIT = {
    "type": "compact_20260112",
    "trigger": {"type": "input_tokens", "value": 50},  # less than any history of the check
}
_THINKING = {
    "type": "thinking",
    "thinking": "The tool knows the weather, so I call it again. " * 8,
    "signature": "none",
}


@check(
    "messages.edits.applied",
    "F-7",
    title="old tool results are cleared, and applied_edits states the removed tokens",
    why="The agent relies on the edit, and its session exceeds the context window.",
)
async def applied_edits(target: TargetServer) -> str:
    body = _tool_loop(target) | {"context_management": {"edits": [_EDIT]}}
    exchange = await _post(target, body)
    edit = _find_edit(exchange, "clear_tool_uses_20250919")
    cleared = edit.get("cleared_tool_uses")
    require(cleared == _CALLS - _RETAINED_CALLS, f"cleared_tool_uses is {cleared!r}")
    counted = await _count(target, body)
    original = (counted.get("context_management") or {}).get("original_input_tokens")
    require(isinstance(original, int), f"original_input_tokens is {original!r}")
    removed = original - counted["input_tokens"]
    reported = edit.get("cleared_input_tokens")
    require(reported == removed, f"{reported} tokens are reported as cleared, {removed} are")
    return f"{cleared} results, {removed} of {original} tokens"


@check(
    "messages.edits.thinking",
    "F-7",
    title="old reasoning is cleared, and applied_edits states the removed tokens",
    why="The agent relies on the edit, and its session exceeds the context window.",
)
async def cleared_thinking(target: TargetServer) -> str:
    body = _tool_loop(target, thinking=True) | {"context_management": {"edits": [_THINKING_EDIT]}}
    exchange = await _post(target, body)
    counted = await _count(target, body)
    original = (counted.get("context_management") or {}).get("original_input_tokens")
    plain = await _count(target, _tool_loop(target))
    if original is not None and original <= plain["input_tokens"]:
        raise NotApplicable("the prompt has no reasoning of the history")
    edit = _find_edit(exchange, "clear_thinking_20251015")
    cleared, reported = edit.get("cleared_thinking_turns"), edit.get("cleared_input_tokens")
    require(cleared == _CALLS - _RETAINED_CALLS, f"cleared_thinking_turns is {cleared!r}")
    require(isinstance(original, int), f"original_input_tokens is {original!r}")
    removed = original - counted["input_tokens"]
    require(reported == removed, f"{reported} tokens are reported as cleared, {removed} are")
    return f"{cleared} turns, {removed} of {original} tokens"


@check(
    "messages.edits.compact",
    "F-8",
    title="the edit compact_20260112 returns a compaction block before the response",
    why="The history is never summarized, and the session exceeds the context window.",
)
async def automatic_compaction(target: TargetServer) -> str:
    edits = {"context_management": {"edits": [_COMPACT_EDIT]}}
    exchange = await _post(target, _tool_loop(target) | edits)
    kinds = [block.get("type") for block in exchange.json.get("content", ())]
    require(kinds[:1] == ["compaction"], f"the response has the blocks {kinds}")
    summary = exchange.json["content"][0].get("content")
    require(isinstance(summary, str) and bool(summary), f"the summary is {summary!r}")
    return ", ".join(map(str, kinds))


@check(
    "messages.compaction",
    "F-8",
    title="a request for compaction returns a compaction block, which replaces the history",
    why="compact_before_next_turn() of the SDK ends with an error, or changes nothing.",
)
async def compaction(target: TargetServer) -> str:
    body = _tool_loop(target)
    exchange = await _post(target, body | {"compaction": {"type": "summarize"}})
    message = exchange.json
    require(message.get("stop_reason") == "compaction", f"stopped by {message.get('stop_reason')}")
    kinds = [block.get("type") for block in message.get("content", ())]
    require(kinds == ["compaction"], f"the response has the blocks {kinds}")
    summary = {"type": "compaction", "content": "The user wants to know the weather in Oslo."}
    short = body | {"messages": [{"role": "assistant", "content": [summary]}]}
    full = body | {"messages": [*body["messages"], *short["messages"]]}
    tokens = [(await _count(target, one))["input_tokens"] for one in (short, full)]
    require(tokens[0] == tokens[1], f"{tokens[1]} tokens with the replaced history, {tokens[0]}")
    return f"{tokens[0]} tokens after the compaction"


def _find_edit(exchange: HttpExchange, kind: str) -> Json:
    management: Json = exchange.json.get("context_management") or {}
    applied: list[Json] = management.get("applied_edits") or []
    found = [edit for edit in applied if edit.get("type") == kind]
    require(bool(found), f"applied_edits is {management.get('applied_edits')!r}")
    return found[0]


async def _post(target: TargetServer, body: Json) -> HttpExchange:
    exchange = await target.post(MESSAGES.path, body)
    if exchange.status in (400, 404, 405, 501):
        raise NotApplicable(f"not supported: the server returned {exchange.status}")
    require_accepted(exchange, MESSAGES, "context management")
    return exchange


async def _count(target: TargetServer, body: Json) -> Json:
    """Return the response of count_tokens."""
    exchange = await target.post("/v1/messages/count_tokens?beta=true", body)
    counted: Json = exchange.require_ok().json
    return counted


def _tool_loop(target: TargetServer, *, thinking: bool = False) -> Json:
    """Return a request whose history has several calls with results."""
    messages: list[Json] = [{"role": "user", "content": f"{QUESTION} {target.new_nonce()}"}]
    for at in range(_CALLS):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": TOOL_NAME, "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": _RESULT}
        content = [_THINKING, call] if thinking else [call]
        messages.append({"role": "assistant", "content": content})
        messages.append({"role": "user", "content": [result]})
    return {"model": target.model, "max_tokens": 64, "messages": messages, "tools": [_TOOL]}


CHECKS = (applied_edits, cleared_thinking, automatic_compaction, compaction)
