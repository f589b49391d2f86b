"""Answers of a given shape: titles, verdicts, plans."""

import json

from dovetail_verify.api_checks import Row, checks_of
from dovetail_verify.black_box.samples import was_cut
from dovetail_verify.check import NotApplicable, require
from dovetail_verify.dialects import CHAT, RESPONSES, Dialect, Json
from dovetail_verify.target import Stage

_SCHEMA: Json = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
_ASKED = "Write a title for a conversation about the weather. Answer in JSON with the key title."


async def _structured(stage: Stage, dialect: Dialect) -> str:
    body = {**dialect.body(stage.model, [_ASKED], limit=512), **_format(dialect)}
    exchange = (await stage.post(dialect.path, body)).ok()
    if was_cut(dialect, exchange):
        raise NotApplicable("the answer was cut by the limit")
    text = dialect.text(exchange)
    require(_fits(text), f"the answer is not JSON of the schema: {text!r}")
    return text


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("title"), str) and len(value) == 1


def _format(dialect: Dialect) -> Json:
    named = {"name": "title", "schema": _SCHEMA, "strict": True}
    if dialect is RESPONSES:
        return {"text": {"format": {"type": "json_schema", **named}}}
    if dialect is CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}}


CHECKS = checks_of(
    (
        Row(
            "structured",
            {"messages": "CC-28", "responses": "CX-24", "chat": "AG-15"},
            "an answer that is to follow a schema follows it",
            "Titles, plans and verdicts cannot be read, and are asked for again and again.",
            _structured,
        ),
    )
)
