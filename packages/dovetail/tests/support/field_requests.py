"""Requests with one declared field each, and the responses to them."""

import json
from typing import Any

from http_fixture import NAME, Reply

PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
MESSAGES = [{"role": "user", "content": "Hello?"}]
FUNCTION = {"name": "look_up", "description": "Finds.", "parameters": {"type": "object"}}
TOOLS: dict[str, Any] = {
    "messages": {"name": "look_up", "input_schema": {"type": "object"}},
    "responses": {"type": "function", **FUNCTION},
    "chat": {"type": "function", "function": FUNCTION},
}
CUSTOM: dict[str, Any] = {
    "responses": {"type": "custom", "name": "patch"},
    "chat": {"type": "custom", "custom": {"name": "patch"}},
}
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"model": NAME, "messages": MESSAGES},
    "responses": {"model": NAME, "input": "Hello?"},
    "chat": {"model": NAME, "messages": MESSAGES},
    "completions": {"model": NAME, "prompt": "Hello?"},
}
#: Fields that a field needs next to it, per field.
COMPANIONS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "stream_options.include_usage": {"stream": True},
    "nvext.dispatch": {"stream": True},
    "tool_choice": {"tools": ...},
    "tool_choice.type": {"tools": ...},
    "tool_choice.name": {"tools": ..., "tool_choice": {"type": "tool"}},
    "tool_choice.disable_parallel_tool_use": {"tools": ..., "tool_choice": {"type": "auto"}},
    "parallel_tool_calls": {"tools": ...},
    "function_call": {"functions": [FUNCTION]},
    "thinking.budget_tokens": {"thinking": {"type": "enabled"}},
    "thinking.display": {"thinking": {"type": "enabled"}},
    "top_logprobs": {"logprobs": True},
    "compaction.instructions": {"compaction": {"type": "summarize"}},
}
VOLATILE = {
    "id", "created", "created_at", "completed_at", "signature", "encrypted_content", "item_id",
}  # fmt: skip


def put(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set the field at a path; `[]` is the first item."""
    *outer, last = path.replace("[]", "").split(".")
    at: Any = body
    for name in outer:
        at = at[0] if isinstance(at, list) else at
        at = at.setdefault(name, {})
    (at[0] if isinstance(at, list) else at)[last] = value
    return body


def shown(reply: Reply) -> Any:
    """Return what a client sees, without ids and times."""
    if "json" not in reply.headers.get("content-type", ""):
        frames = [line for line in reply.body.decode().splitlines() if line.startswith("data: {")]
        return [stable(json.loads(line.removeprefix("data: "))) for line in frames]
    return stable(reply.json)


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: stable(one) for name, one in value.items() if name not in VOLATILE}
    return [stable(one) for one in value] if isinstance(value, list) else value


def body_for(api: str, name: str) -> dict[str, Any]:
    """Return a request to which a field can be added, with the fields that it needs next to it."""
    base = BODIES[api] | COMPANIONS.get(name, {})
    if base.get("tools") is ... or name.startswith("tools[]."):
        custom = name.startswith(("tools[].custom", "tools[].format"))
        base = base | {"tools": [CUSTOM[api] if custom else TOOLS[api]]}
    return base
