"""Requests as the clients of each API send them: a question, and the history that they replay."""

from collections.abc import Sequence
from typing import Any

from dovetail_verify.exchange import HttpExchange
from dovetail_verify.scripted.response import OutputPart, ParsedResponse, parse_response
from dovetail_verify.scripted.scenarios import LOOKUP_TOOL, NEXT_TRIGGER, WRITE_TOOL, Scenario
from dovetail_verify.target import API_PATHS, Json, TargetServer

MAX_OUTPUT_TOKENS = 16384  # tokens of an answer: no scene comes near it
SYSTEM_PROMPT = "You look up the weather. Use the tools."
_STRING_SCHEMA = {"type": "string"}
_TOOLS: dict[str, Json] = {
    LOOKUP_TOOL: {"city": _STRING_SCHEMA, "days": {"type": "integer"}},
    WRITE_TOOL: {"path": _STRING_SCHEMA, "content": _STRING_SCHEMA},
}
#: What Codex says in every request.
_CODEX_FIELDS: Json = {
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
CACHE_CONTROL = {"cache_control": {"type": "ephemeral"}}


def user_message(scenario: Scenario, nonce: str) -> str:
    """The user's message that gets a scene; the nonce finds its prompt in the recording."""
    return f"{scenario.trigger} {nonce}: what is the weather like?"


def first_request(api: str, target: TargetServer, text: str, *, stream: bool) -> Json:
    """A first request."""
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
    """The exchange. In header names _ stands for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await target.post(API_PATHS[api], body, named)


async def run_scenario(
    api: str, target: TargetServer, scenario: Scenario, *, stream: bool = True
) -> ParsedResponse:
    """A scene, asked for and read; kept for all checks that look at it."""

    async def make(stage: TargetServer) -> ParsedResponse:
        return await rerun_scenario(api, stage, scenario, stream=stream)

    return await target.memoize(f"{api} {scenario.name} {'stream' if stream else 'whole'}", make)


async def rerun_scenario(
    api: str, target: TargetServer, scenario: Scenario, *, stream: bool = True
) -> ParsedResponse:
    """A scene, whether it was played before or not."""
    body = first_request(api, target, user_message(scenario, target.new_nonce()), stream=stream)
    return parse_response(api, await send_request(api, target, body))


def followup_request(
    api: str, body: Json, parsed: ParsedResponse, nonce: str, *, calls_last: bool = False
) -> Json:
    """The next request, with the results of the calls, the last call's first.

    `moved`: calls stand behind everything else, as Claude Code sends a turn with text in it.
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
    """The first turn flips from a list to a string, and inputs come back in another order."""
    parts = parsed.parts
    if calls_last:
        parts = [part for part in parts if part.kind != "call"] + parsed.parts_of("call")
    asked = body["messages"][0]["content"][0]["text"]
    returned: list[Json] = [
        {"type": "tool_result", "tool_use_id": part.id, "content": text} for part, text in results
    ]
    returned[-1] |= CACHE_CONTROL
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [_content_block(part) for part in parts]},
        {"role": "user", "content": returned},
    ]


def _content_block(part: OutputPart) -> Json:
    if part.kind == "thought":
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    given = dict(reversed(part.input.items()))
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def _followup_chat(parsed: ParsedResponse, results: Sequence[tuple[OutputPart, str]]) -> list[Json]:
    """One message has one field for thoughts and one for text, whatever their order was."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}}
        for c in parsed.parts_of("call")
    ]
    said = {
        "content": parsed.text_of("text") or None,
        "reasoning_content": parsed.text_of("thought"),
    }
    answers = [{"role": "tool", "tool_call_id": part.id, "content": text} for part, text in results]
    return [{"role": "assistant", **said, "tool_calls": calls}, *answers]


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
