"""Checks of requests in the form that Codex and others send to the Responses API."""

from typing import Any

from dovetail_verify.black_box.errors import refusal_reason, require_accepted
from dovetail_verify.black_box.samples import QUESTION, is_truncated, sample_response
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import (
    RESPONSES,
    TOOL_CALL_MAX_TOKENS,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    TOOL_PARAMETERS,
    Json,
)
from dovetail_verify.exchange import HttpExchange, SentRequest
from dovetail_verify.http_client import open_connection
from dovetail_verify.target import TargetServer

_FUNCTION_TOOL = {
    "type": "function",
    "name": TOOL_NAME,
    "description": TOOL_DESCRIPTION,
    "strict": False,
    "parameters": TOOL_PARAMETERS,
}
_PATCH_TOOL = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Applies a patch to files.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "*** Begin Patch" LF\nLF: /\\n/\n',
    },
}
_NAMESPACE_TOOL = {
    "type": "namespace",
    "name": "weather",
    "description": "x",
    "tools": [_FUNCTION_TOOL],
}


def _require_accepted(exchange: HttpExchange, what: str) -> str:
    return require_accepted(exchange, RESPONSES, what)


async def _post_responses(target: TargetServer, items: Any, **more: Any) -> HttpExchange:
    body = {"model": target.model, "input": items, "max_output_tokens": 16, **more}
    return await target.post(RESPONSES.path, body)


@check(
    "responses.accepts.codex",
    "CX-15",
    title="a request with all fields that Codex sends is accepted",
    why="Codex sends all of them on every turn.",
)
async def codex_request(target: TargetServer) -> str:
    word = target.new_nonce()
    body = {
        "model": target.model,
        "input": [
            _message_item("developer", [{"type": "input_text", "text": "You are a coding agent."}]),
            _message_item("user", [{"type": "input_text", "text": QUESTION}], id=f"msg_{word}"),
        ],
        "tools": [_FUNCTION_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": word,
        "client_metadata": {"originator": "codex_exec"},
        "text": {"verbosity": "low"},
        "max_output_tokens": 32,
    }
    headers = {"session-id": word, "thread-id": word, "x-codex-turn-metadata": "{}"}
    return _require_accepted(
        await target.post(RESPONSES.path, body, headers), "Codex's own request"
    )


@check(
    "responses.accepts.string",
    "TK-4",
    title="input as a string produces the same prompt as input as a message",
    why="The simplest request of every SDK fails, or has a different number of tokens.",
)
async def string_input(target: TargetServer) -> str:
    exchange = (await _post_responses(target, QUESTION)).require_ok()
    one, other = (
        RESPONSES.usage(exchange),
        RESPONSES.usage(await sample_response(target, RESPONSES)),
    )
    require(
        one.prompt_tokens == other.prompt_tokens,
        f"{one.prompt_tokens} tokens as a string, {other.prompt_tokens} as items",
    )
    return f"{one.prompt_tokens} tokens"


@check(
    "responses.accepts.items",
    "CX-10",
    title="messages without a type, with an id, with a phase and with role developer are accepted",
    why="OpenCode and Codex omit the type or add fields, so their second turn fails.",
)
async def item_types(target: TargetServer) -> str:
    items: list[Json] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        _message_item(
            "assistant", [_output_text("Red")], id="msg_1", status="completed", phase="final_answer"
        ),
        {"role": "user", "content": "More."},
    ]
    return _require_accepted(
        await _post_responses(target, items), "messages in the form that agents send"
    )


@check(
    "responses.accepts.replay",
    "CX-10",
    title="a tool loop is accepted as clients replay it",
    why="The second turn of every tool loop fails.",
)
async def replay(target: TargetServer) -> str:
    items: list[Json] = [
        _message_item("user", "What is the weather in Paris and Rome?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": None,
            "encrypted_content": None,
        },
        _call_item("call_v1", id="fc_1", status="completed"),
        {"type": "reasoning", "summary": [], "content": [_reasoning_item("Now Rome.")]},
        _call_item("call_v2"),
        _call_output_item("call_v2", [{"type": "input_text", "text": "Rain"}]),
        _call_output_item("call_v1", "Sun"),
    ]
    return _require_accepted(
        await _post_responses(target, items, tools=[_FUNCTION_TOOL]), "reasoning, calls and outputs"
    )


@check(
    "responses.accepts.tools",
    "CX-11",
    title="namespaces, web search and custom tools do not make a request fail",
    why="Codex offers such tools on every turn.",
)
async def tool_types(target: TargetServer) -> str:
    for tool in (
        _NAMESPACE_TOOL,
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "description": "x", "execution": "client"},
        _PATCH_TOOL,
    ):
        exchange = await _post_responses(target, QUESTION, tools=[_FUNCTION_TOOL, tool])
        _require_accepted(exchange, f"a tool of type {tool['type']}")
    return "four types of tools"


@check(
    "responses.accepts.unknown",
    "CX-25",
    title="unknown fields and tools do not make a request fail",
    why="The next version of the client sends a new field, and all requests fail.",
)
async def unknown_fields(target: TargetServer) -> str:
    tools = [_FUNCTION_TOOL, {"type": "a_tool_of_tomorrow", "name": "x"}]
    exchange = await _post_responses(target, QUESTION, tools=tools, a_field_of_tomorrow={"x": 1})
    return _require_accepted(exchange, "an unknown field and an unknown tool")


@check(
    "responses.call.custom",
    "CX-12",
    title="a call of a custom tool is a custom_tool_call with free-form text",
    why="Codex rejects the patch as incompatible and changes no file.",
)
async def custom_tool_call(target: TargetServer) -> str:
    more: Json = {"tools": [_PATCH_TOOL], "tool_choice": {"type": "custom", "name": "apply_patch"}}
    more |= {"max_output_tokens": TOOL_CALL_MAX_TOKENS}
    exchange = await _post_responses(
        target, "Add a file a.txt with the word hello: apply_patch.", **more
    )
    if exchange.status >= 400:
        exchange = await _post_responses(
            target, "Add a file a.txt: apply_patch.", **{**more, "tool_choice": "auto"}
        )
    if is_truncated(RESPONSES, exchange.require_ok()):
        raise NotApplicable("the response was truncated by the token limit")
    found = [item for item in RESPONSES.response(exchange)["output"] if "call_id" in item]
    if not found:
        raise NotApplicable("the model did not call the tool")
    require(found[0]["type"] == "custom_tool_call", f"the call is a {found[0]['type']}")
    require(isinstance(found[0].get("input"), str), "the call has no input text")
    return "custom_tool_call"


@check(
    "responses.call.namespace",
    "CX-18",
    title="a call of a namespaced tool has its name and its namespace",
    why="Codex rejects plain and joined names, so no MCP tool works.",
)
async def namespaced_tool_call(target: TargetServer) -> str:
    more: Json = {
        "tools": [_NAMESPACE_TOOL],
        "tool_choice": "required",
        "max_output_tokens": TOOL_CALL_MAX_TOKENS,
    }
    exchange = await _post_responses(target, "What is the weather in Paris? Use the tool.", **more)
    if exchange.status >= 400:
        raise NotApplicable(f"a request with a required call returned {exchange.status}")
    if is_truncated(RESPONSES, exchange):
        raise NotApplicable("the response was truncated by the token limit")
    found = [i for i in RESPONSES.response(exchange)["output"] if i["type"] == "function_call"]
    if not found:
        raise NotApplicable("the model did not call the tool")
    if not found[0]["name"].endswith(TOOL_NAME):
        raise NotApplicable(f"the model called {found[0]['name']!r}, which is not in `tools`")
    got = found[0].get("namespace"), found[0]["name"]
    require(got == ("weather", TOOL_NAME), f"namespace and name are {got}")
    return f"namespace weather, name {TOOL_NAME}"


@check(
    "responses.websocket",
    "CX-13",
    title="a WebSocket upgrade is accepted, or rejected with 426",
    why="With any other status Codex tries seven times before it uses HTTP.",
)
async def websocket(target: TargetServer) -> str:
    headers = {
        **target.auth_headers(RESPONSES.path),
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "openai-beta": "responses_websockets=2026-02-06",
    }
    async with open_connection(target.endpoint, target.timeout) as held:
        status, _, _ = await held.request("GET", RESPONSES.path, headers)
    sent = str(SentRequest("GET", RESPONSES.path, None, {"upgrade": "websocket"}))
    require(status in (101, 426), f"returned {status}", sent=sent, received=str(status))
    return f"returned {status}"


@check(
    "responses.previous",
    "CX-17",
    title="previous_response_id works, or the error states why not",
    why="A conversation continues without its beginning, and the user does not notice.",
)
async def previous_response(target: TargetServer) -> str:
    first = (await _post_responses(target, QUESTION, store=True)).require_ok()
    known = RESPONSES.response_id(first)
    exchange = await _post_responses(target, "More.", previous_response_id=known)
    if exchange.status != 200:
        return refusal_reason(exchange)
    one, two = RESPONSES.usage(first).prompt_tokens, RESPONSES.usage(exchange).prompt_tokens
    require(two > one, f"accepted, but the prompt has {two} tokens and the first prompt had {one}")
    unknown = await _post_responses(target, "More.", previous_response_id="resp_that_nobody_knows")
    require(unknown.status >= 400, "an unknown previous_response_id is accepted without an error")
    return f"{two} prompt tokens, {one} before"


def _message_item(role: str, content: object, **more: object) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _reasoning_item(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _call_item(id_: str, **more: object) -> Json:
    call = {
        "type": "function_call",
        "call_id": id_,
        "name": TOOL_NAME,
        "arguments": '{"city":"Paris"}',
    }
    return {**call, **more}


def _call_output_item(id_: str, output: object) -> Json:
    return {"type": "function_call_output", "call_id": id_, "output": output}


CHECKS = (
    codex_request,
    string_input,
    item_types,
    replay,
    tool_types,
    unknown_fields,
    custom_tool_call,
    namespaced_tool_call,
    websocket,
    previous_response,
)
