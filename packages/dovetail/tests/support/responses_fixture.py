"""What the tests of kept responses share."""

from typing import Any

from http_fixture import NAME, Stage

TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
THOUGHT = "<think>\nLet me see.\n</think>\n\n"


async def ask(stage: Stage, *, stream: bool, **body: Any) -> Any:
    """A response, by either way."""
    client = stage.openai()
    body = {"model": NAME, "tools": [TOOL], **body}
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events:
        return await events.get_final_response()


def said(stage: Stage, at: int, answer: str) -> list[int]:
    """The prompt of a turn and what was generated, without the token that ended it."""
    return [*stage.engine.asked[at].prompt, *stage.engine.tokenizer.encode(answer)]
