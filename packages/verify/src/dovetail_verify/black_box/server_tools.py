"""Checks of server tools: a search is run, or the error names it; its blocks can be sent back."""

from dovetail_verify.black_box.errors import require_accepted, require_error_message
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import check, require
from dovetail_verify.dialects import MESSAGES, RESPONSES, Dialect, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_MAX_TOKENS = 512
_SEARCH_QUESTION = "Perform a web search for the query: weather in Oslo"
_MESSAGES_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
_RESPONSES_TOOL = {"type": "web_search"}
_NOT_RUN = "the response contains no search: the tool was dropped, and the model invents results"


def _require_named(exchange: HttpExchange, dialect: Dialect) -> str:
    """Require that the error of a server without a search names the tool."""
    message = require_error_message(exchange, dialect)
    named = exchange.status < 500 and "web_search" in message
    require(named, f"status {exchange.status} with an error that does not name the tool: {message}")
    return "rejected, with the name of the tool"


@check(
    "messages.server_tools.run",
    "ST-1",
    title="a request whose only tool is a web search runs it, or fails with its name",
    why="WebSearch of Claude Code returns text that the model invented.",
)
async def messages_search(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [_SEARCH_QUESTION], max_tokens=_MAX_TOKENS)
    body |= {"tools": [_MESSAGES_TOOL], "tool_choice": {"type": "tool", "name": "web_search"}}
    exchange = await target.post(MESSAGES.path, body)
    if exchange.status != 200:
        return _require_named(exchange, MESSAGES)
    content = exchange.json["content"]
    calls = [block for block in content if block["type"] == "server_tool_use"]
    results = [block for block in content if block["type"] == "web_search_tool_result"]
    require(calls, _NOT_RUN)
    ids = [block["tool_use_id"] for block in results]
    require([call["id"] for call in calls] == ids, "a search has no web_search_tool_result")
    requests = (exchange.json["usage"].get("server_tool_use") or {}).get("web_search_requests")
    require(requests, "usage.server_tool_use.web_search_requests does not count the search")
    replayed = MESSAGES.body(target.model, [_SEARCH_QUESTION, "x", QUESTION], max_tokens=16)
    replayed["messages"][1]["content"] = content
    again = await target.post(MESSAGES.path, {**replayed, "tools": [_MESSAGES_TOOL]})
    require_accepted(again, MESSAGES, "the blocks of a search")
    return f"searches: {requests}"


@check(
    "responses.server_tools.run",
    "ST-1",
    title="a request whose only tool is a web search runs it, or fails with its name",
    why="A search returns text that the model invented.",
)
async def responses_search(target: TargetServer) -> str:
    body = RESPONSES.body(target.model, [_SEARCH_QUESTION], max_tokens=_MAX_TOKENS)
    body |= {"tools": [_RESPONSES_TOOL], "tool_choice": "required"}
    exchange = await target.post(RESPONSES.path, body)
    if exchange.status != 200:
        return _require_named(exchange, RESPONSES)
    output = exchange.json["output"]
    calls = [item for item in output if item["type"] == "web_search_call"]
    require(calls, _NOT_RUN)
    require(
        all(call["status"] in ("completed", "failed") for call in calls), "a search has not ended"
    )
    items: list[Json] = [
        {"role": "user", "content": _SEARCH_QUESTION},
        *output,
        {"role": "user", "content": QUESTION},
    ]
    replayed = RESPONSES.body(target.model, [QUESTION], max_tokens=16) | {"input": items}
    again = await target.post(RESPONSES.path, {**replayed, "tools": [_RESPONSES_TOOL]})
    require_accepted(again, RESPONSES, "the items of a search")
    return f"searches: {len(calls)}"


@check(
    "messages.accepts.server_tool_history",
    "ST-2",
    title="a history with searches of another server is accepted",
    why="A session that began on another server fails with every request.",
)
async def messages_history(target: TargetServer) -> str:
    body = MESSAGES.body(target.model, [_SEARCH_QUESTION, "x", QUESTION], max_tokens=16)
    page = {
        "type": "web_search_result",
        "url": "https://example.com",
        "title": "Weather",
        "encrypted_content": "Eo8BCioIARgC",
    }
    body["messages"][1]["content"] = [
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "Oslo"},
        },
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]},
        {"type": "text", "text": "It rains."},
    ]
    exchange = await target.post(MESSAGES.path, body)
    return require_accepted(exchange, MESSAGES, "a history with a search")


@check(
    "responses.accepts.server_tool_history",
    "ST-2",
    title="a history with searches of another server is accepted",
    why="A session that began on another server fails with every request.",
)
async def responses_history(target: TargetServer) -> str:
    action = {"type": "search", "query": "Oslo"}
    items: list[Json] = [
        {"role": "user", "content": _SEARCH_QUESTION},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": QUESTION},
    ]
    body = RESPONSES.body(target.model, [QUESTION], max_tokens=16) | {"input": items}
    exchange = await target.post(RESPONSES.path, body)
    return require_accepted(exchange, RESPONSES, "a history with a search")


CHECKS = (messages_search, responses_search, messages_history, responses_history)
