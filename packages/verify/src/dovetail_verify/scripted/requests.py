"""Requests in the form that clients of each API send: a first message, and a replayed history."""

from collections.abc import Sequence
from typing import Any

from dovetail_verify.exchange import HttpExchange
from dovetail_verify.scripted.response import OutputPart, ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import LOOKUP_TOOL, NEXT_TRIGGER, WRITE_TOOL, Scenario
from dovetail_verify.target import API_PATHS, Json, TargetServer

MAX_OUTPUT_TOKENS = 16384  # more than any scenario generates
SYSTEM_PROMPT = "You look up the weather. Use the tools."
_STRING_SCHEMA = {"type": "string"}
_TOOLS: dict[str, Json] = {
    LOOKUP_TOOL: {"city": _STRING_SCHEMA, "days": {"type": "integer"}},
    WRITE_TOOL: {"path": _STRING_SCHEMA, "content": _STRING_SCHEMA},
}
#: Fields that Codex sends with every request.
_CODEX_FIELDS: Json = {
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
CACHE_CONTROL = {"cache_control": {"type": "ephemeral"}}


def user_message(scenario: Scenario, nonce: str) -> str:
    """Return the message that triggers a scenario. The nonce identifies it in the recording."""
    return f"{scenario.trigger} {nonce}: what is the weather like?"


def first_request(api: str, target: TargetServer, text: str, *, stream: bool) -> Json:
    """Return the first request of a conversation."""
    body: Json = {"model": target.model, "tools": [_tool_definition(api, name) for name in _TOOLS]}
    if stream:
        body["stream"] = True
    if api == "messages":
        parts = [{"type": "text", "text": text, **CACHE_CONTROL}]
        system = [{"type": "text", "text": SYSTEM_PROMPT, **CACHE_CONTROL}]
        turns = [{"role": "user", "content": parts}]
        return {**body, "max_tokens": MAX_OUTPUT_TOKENS, "system": system, "messages": turns}
    if api == "responses":
        turns = [_message_item("developer", SYSTEM_PROMPT), _message_item("user", text)]
        return {**body, **_CODEX_FIELDS, "input": turns}
    if stream:
        body["stream_options"] = {"include_usage": True}
    turns = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    return {**body, "max_tokens": MAX_OUTPUT_TOKENS, "messages": turns}


async def send_request(api: str, target: TargetServer, body: Json, **headers: str) -> HttpExchange:
    """Send a request. Underscores in header names become hyphens."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return await target.post(API_PATHS[api], body, fields)


async def run_scenario(
    api: str, target: TargetServer, scenario: Scenario, *, stream: bool = True
) -> ParsedResponse:
    """Run a scenario once for all checks that use it."""

    async def make(server: TargetServer) -> ParsedResponse:
        return await rerun_scenario(api, server, scenario, stream=stream)

    return await target.memoize(f"{api} {scenario.name} {'stream' if stream else 'whole'}", make)


async def rerun_scenario(
    api: str, target: TargetServer, scenario: Scenario, *, stream: bool = True
) -> ParsedResponse:
    """Run a scenario, even if it ran before."""
    body = first_request(api, target, user_message(scenario, target.new_nonce()), stream=stream)
    return parse_response(api, await send_request(api, target, body))


def followup_request(
    api: str, body: Json, parsed: ParsedResponse, nonce: str, *, calls_last: bool = False
) -> Json:
    """Return the next request, with the results of the calls in reverse order.

    `calls_last` moves the calls to the end, as Claude Code does for a turn that contains text.
    """
    results = [
        (part, f"{NEXT_TRIGGER} {nonce} {n}: sunny")
        for n, part in enumerate(parsed.parts_of("call"))
    ]
    results.reverse()
    if api == "messages":
        return {
            **body,
            "messages": _followup_messages(body, parsed, results, calls_last=calls_last),
        }
    if api == "responses":
        outputs = [
            {"type": "function_call_output", "call_id": part.id, "output": text}
            for part, text in results
        ]
        return {**body, "input": [*body["input"], *parsed.items, *outputs]}
    return {**body, "messages": [*body["messages"], *_followup_chat(parsed, results)]}


def _followup_messages(
    body: Json,
    parsed: ParsedResponse,
    results: Sequence[tuple[OutputPart, str]],
    *,
    calls_last: bool,
) -> list[Json]:
    """Return the messages as Claude Code replays them: first turn as a string, inputs reordered."""
    parts = parsed.parts
    if calls_last:
        parts = [part for part in parts if part.kind != "call"] + parsed.parts_of("call")
    question = body["messages"][0]["content"][0]["text"]
    returned: list[Json] = [
        {"type": "tool_result", "tool_use_id": part.id, "content": text} for part, text in results
    ]
    returned[-1] |= CACHE_CONTROL
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": [_content_block(part) for part in parts]},
        {"role": "user", "content": returned},
    ]


def _content_block(part: OutputPart) -> Json:
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    given = dict(reversed(part.input.items()))
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def _followup_chat(parsed: ParsedResponse, results: Sequence[tuple[OutputPart, str]]) -> list[Json]:
    """Return one message with one field for all reasoning and one for all text."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}}
        for c in parsed.parts_of("call")
    ]
    fields = {
        "content": parsed.text_of("text") or None,
        "reasoning_content": parsed.text_of("reasoning"),
    }
    outputs = [{"role": "tool", "tool_call_id": part.id, "content": text} for part, text in results]
    return [{"role": "assistant", **fields, "tool_calls": calls}, *outputs]


def _message_item(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _tool_definition(api: str, name: str) -> Json:
    schema: dict[str, Any] = {"type": "object", "properties": _TOOLS[name]}
    about = f"The tool {name}."
    if api == "messages":
        return {"name": name, "description": about, "input_schema": schema}
    function = {"name": name, "description": about, "parameters": schema}
    if api == "responses":
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}
