"""Request bodies of an agent's session whose history grows turn by turn, for each API."""

from typing import Any

import msgspec

TEXT = "Some words of a file, é 漢字. " * 20


def agent_turn(api: str, number: int) -> list[dict[str, Any]]:
    """Return what one turn of an agent adds to the history: two calls and their results."""
    ids = [f"call_{number}_a", f"call_{number}_b"]
    if api == "messages":
        thinking = {"type": "thinking", "thinking": TEXT, "signature": "s"}
        uses = [
            {"type": "tool_use", "id": id, "name": "read", "input": {"n": number}} for id in ids
        ]
        results = [{"type": "tool_result", "tool_use_id": id, "content": TEXT} for id in ids]
        return [
            {"role": "assistant", "content": [thinking, *uses]},
            {"role": "user", "content": results},
        ]
    if api == "responses":
        calls = [{"type": "function_call", "call_id": id, "name": "read"} for id in ids]
        return [
            {"type": "reasoning", "summary": [], "encrypted_content": "s"},
            *({**call, "arguments": "{}"} for call in calls),
            *({"type": "function_call_output", "call_id": id, "output": TEXT} for id in ids),
        ]
    uses = [{"id": id, "function": {"name": "read", "arguments": "{}"}} for id in ids]
    return [
        {"role": "assistant", "content": None, "reasoning_content": TEXT, "tool_calls": uses},
        *({"role": "tool", "tool_call_id": id, "content": TEXT} for id in ids),
    ]


def history_body(api: str, history: list[dict[str, Any]], **fields: Any) -> bytes:
    function = {"name": "read", "description": "Read.", "parameters": {"type": "object"}}
    head: dict[str, Any] = {"model": "m", "stream": True}
    match api:
        case "messages":
            tool = {"name": "read", "input_schema": {"type": "object"}}
            head |= {"system": [{"type": "text", "text": TEXT}], "messages": history}
        case "responses":
            tool = {"type": "function", **function}
            head |= {"instructions": TEXT, "input": history}
        case _:
            tool = {"type": "function", "function": function}
            lead = [{"role": "system", "content": "a"}, {"role": "developer", "content": TEXT}]
            head |= {"messages": [*lead, *history]}
    return msgspec.json.encode({**head, "tools": [tool], **fields})
