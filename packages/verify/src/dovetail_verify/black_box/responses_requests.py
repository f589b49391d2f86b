"""Requests as Codex and others send them to the Responses API."""

from typing import Any

from dovetail_verify.black_box.refusals import accepted, said
from dovetail_verify.black_box.samples import QUESTION, was_cut, whole
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import CALL_LIMIT, DESCRIPTION, NAME, PARAMETERS, RESPONSES, Json
from dovetail_verify.exchange import Exchange, Sent
from dovetail_verify.http_client import line
from dovetail_verify.target import Stage

_FUNCTION = {
    "type": "function",
    "name": NAME,
    "description": DESCRIPTION,
    "strict": False,
    "parameters": PARAMETERS,
}
_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files by a patch.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "*** Begin Patch" LF\nLF: /\\n/\n',
    },
}
_NAMESPACE = {"type": "namespace", "name": "weather", "description": "x", "tools": [_FUNCTION]}


def _accepted(exchange: Exchange, what: str) -> str:
    return accepted(exchange, RESPONSES, what)


async def _ask(stage: Stage, items: Any, **more: Any) -> Exchange:
    body = {"model": stage.model, "input": items, "max_output_tokens": 16, **more}
    return await stage.post(RESPONSES.path, body)


@check(
    "responses.accepts.codex",
    "CX-15",
    title="a request with everything that Codex sends is accepted",
    why="Codex sends all of it on every turn.",
)
async def codex(stage: Stage) -> str:
    word = stage.unique()
    body = {
        "model": stage.model,
        "input": [
            _message("developer", [{"type": "input_text", "text": "You are a coding agent."}]),
            _message("user", [{"type": "input_text", "text": QUESTION}], id=f"msg_{word}"),
        ],
        "tools": [_FUNCTION],
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
    return _accepted(await stage.post(RESPONSES.path, body, headers), "Codex's own request")


@check(
    "responses.accepts.string",
    "TK-4",
    title="input as a string is the same prompt as input as a message",
    why="The simplest request of every SDK fails, or costs another number of tokens.",
)
async def string(stage: Stage) -> str:
    exchange = (await _ask(stage, QUESTION)).ok()
    one, other = RESPONSES.used(exchange), RESPONSES.used(await whole(stage, RESPONSES))
    require(one.prompt == other.prompt, f"{one.prompt} tokens as a string, {other.prompt} as items")
    return f"{one.prompt} tokens"


@check(
    "responses.accepts.items",
    "CX-10",
    title="messages without a type, with ids, with a phase and by a developer are accepted",
    why="OpenCode and Codex leave the type out or add fields: their second turn fails.",
)
async def items(stage: Stage) -> str:
    told: list[Json] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        _message(
            "assistant", [_output("Red")], id="msg_1", status="completed", phase="final_answer"
        ),
        {"role": "user", "content": "More."},
    ]
    return _accepted(await _ask(stage, told), "messages as agents send them")


@check(
    "responses.accepts.replay",
    "CX-10",
    title="a tool loop is accepted as clients replay it",
    why="The second turn of every tool loop fails.",
)
async def replay(stage: Stage) -> str:
    told: list[Json] = [
        _message("user", "What is the weather in Paris and Rome?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": None,
            "encrypted_content": None,
        },
        _call("call_v1", id="fc_1", status="completed"),
        {"type": "reasoning", "summary": [], "content": [_reasoning("Now Rome.")]},
        _call("call_v2"),
        _result("call_v2", [{"type": "input_text", "text": "Rain"}]),
        _result("call_v1", "Sun"),
    ]
    return _accepted(await _ask(stage, told, tools=[_FUNCTION]), "reasoning, calls and outputs")


@check(
    "responses.accepts.tools",
    "CX-11",
    title="namespaces, web search and custom tools do not make a request fail",
    why="Codex offers such tools on every turn.",
)
async def tools(stage: Stage) -> str:
    for tool in (
        _NAMESPACE,
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "description": "x", "execution": "client"},
        _PATCH,
    ):
        exchange = await _ask(stage, QUESTION, tools=[_FUNCTION, tool])
        _accepted(exchange, f"a tool of type {tool['type']}")
    return "four kinds of tools"


@check(
    "responses.accepts.unknown",
    "CX-25",
    title="fields and tools that nobody knows do not make a request fail",
    why="The next version of a client sends a new field, and nothing works any more.",
)
async def unknown(stage: Stage) -> str:
    tools = [_FUNCTION, {"type": "a_tool_of_tomorrow", "name": "x"}]
    exchange = await _ask(stage, QUESTION, tools=tools, a_field_of_tomorrow={"x": 1})
    return _accepted(exchange, "a field and a tool of tomorrow")


@check(
    "responses.call.custom",
    "CX-12",
    title="a custom tool is called by a custom_tool_call with free text",
    why="Codex refuses the patch as incompatible, and no file is ever changed.",
)
async def custom(stage: Stage) -> str:
    more: Json = {"tools": [_PATCH], "tool_choice": {"type": "custom", "name": "apply_patch"}}
    more |= {"max_output_tokens": CALL_LIMIT}
    exchange = await _ask(stage, "Add a file a.txt with the word hello: apply_patch.", **more)
    if exchange.status >= 400:
        exchange = await _ask(
            stage, "Add a file a.txt: apply_patch.", **{**more, "tool_choice": "auto"}
        )
    if was_cut(RESPONSES, exchange.ok()):
        raise NotApplicable("the answer was cut by the limit")
    found = [item for item in RESPONSES.response(exchange)["output"] if "call_id" in item]
    if not found:
        raise NotApplicable("the model did not call the tool")
    require(found[0]["type"] == "custom_tool_call", f"it was called by a {found[0]['type']}")
    require(isinstance(found[0].get("input"), str), "the call has no input text")
    return "custom_tool_call"


@check(
    "responses.call.namespace",
    "CX-18",
    title="a call of a namespace comes back with its name and its namespace",
    why="Codex refuses bare and joined names: no MCP tool can be used.",
)
async def namespace(stage: Stage) -> str:
    more: Json = {"tools": [_NAMESPACE], "tool_choice": "required", "max_output_tokens": CALL_LIMIT}
    exchange = await _ask(stage, "What is the weather in Paris? Use the tool.", **more)
    if exchange.status >= 400:
        raise NotApplicable(f"a required call is refused with {exchange.status}")
    if was_cut(RESPONSES, exchange):
        raise NotApplicable("the answer was cut by the limit")
    found = [i for i in RESPONSES.response(exchange)["output"] if i["type"] == "function_call"]
    if not found:
        raise NotApplicable("the model did not call the tool")
    if not found[0]["name"].endswith(NAME):
        raise NotApplicable(f"the model called {found[0]['name']!r}, which was not offered")
    got = found[0].get("namespace"), found[0]["name"]
    require(got == ("weather", NAME), f"namespace and name came back as {got}")
    return f"namespace weather, name {NAME}"


@check(
    "responses.websocket",
    "CX-13",
    title="a WebSocket upgrade is taken, or refused with 426",
    why="With any other status Codex tries seven times before it uses HTTP.",
)
async def websocket(stage: Stage) -> str:
    headers = {
        **stage.auth(RESPONSES.path),
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "openai-beta": "responses_websockets=2026-02-06",
    }
    async with line(stage.endpoint, stage.timeout) as held:
        status, _, _ = await held.ask("GET", RESPONSES.path, headers)
    sent = str(Sent("GET", RESPONSES.path, None, {"upgrade": "websocket"}))
    require(status in (101, 426), f"answered with {status}", sent=sent, came=str(status))
    return f"answered with {status}"


@check(
    "responses.previous",
    "CX-17",
    title="previous_response_id works, or the refusal says why",
    why="A conversation goes on without its beginning, and nobody notices.",
)
async def previous(stage: Stage) -> str:
    first = (await _ask(stage, QUESTION, store=True)).ok()
    known = RESPONSES.answer_id(first)
    exchange = await _ask(stage, "More.", previous_response_id=known)
    if exchange.status != 200:
        return said(exchange)
    one, two = RESPONSES.used(first).prompt, RESPONSES.used(exchange).prompt
    require(two > one, f"accepted, but the prompt has {two} tokens and the first had {one}")
    unknown = await _ask(stage, "More.", previous_response_id="resp_that_nobody_knows")
    require(unknown.status >= 400, "an unknown previous_response_id is accepted in silence")
    return f"{two} prompt tokens, {one} before"


def _message(role: str, content: object, **more: object) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


def _output(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _reasoning(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _call(id_: str, **more: object) -> Json:
    call = {"type": "function_call", "call_id": id_, "name": NAME, "arguments": '{"city":"Paris"}'}
    return {**call, **more}


def _result(id_: str, output: object) -> Json:
    return {"type": "function_call_output", "call_id": id_, "output": output}


CHECKS = (
    codex,
    string,
    items,
    replay,
    tools,
    unknown,
    custom,
    namespace,
    websocket,
    previous,
)
