"""Helpers for tests of stored responses."""

from typing import Any

from http_fixture import NAME, Stage

TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
REASONING = "<think>\nLet me see.\n</think>\n\n"


async def create_response(stage: Stage, *, stream: bool, **body: Any) -> Any:
    """Create a response, streaming or non-streaming."""
    client = stage.openai()
    body = {"model": NAME, "tools": [TOOL], **body}
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events:
        return await events.get_final_response()


def turn_ids(stage: Stage, at: int, output: str) -> list[int]:
    """Return the prompt of a turn and its output, without the stop token."""
    return [*stage.engine.requests[at].prompt, *stage.engine.tokenizer.encode(output)]
