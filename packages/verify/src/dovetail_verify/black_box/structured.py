"""Answers of a given shape: titles, verdicts, plans."""

import json

from dovetail_verify.api_checks import ApiCheckSpec, build_api_checks
from dovetail_verify.black_box.samples import is_truncated
from dovetail_verify.check import NotApplicable, require
from dovetail_verify.dialects import CHAT, RESPONSES, Dialect, Json
from dovetail_verify.target import TargetServer

_SCHEMA: Json = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
_TITLE_PROMPT = (
    "Write a title for a conversation about the weather. Answer in JSON with the key title."
)


async def _structured_output(target: TargetServer, dialect: Dialect) -> str:
    body = {
        **dialect.body(target.model, [_TITLE_PROMPT], max_tokens=512),
        **_schema_format(dialect),
    }
    exchange = (await target.post(dialect.path, body)).require_ok()
    if is_truncated(dialect, exchange):
        raise NotApplicable("the answer was cut by the limit")
    text = dialect.text(exchange)
    require(_matches_schema(text), f"the answer is not JSON of the schema: {text!r}")
    return text


def _matches_schema(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("title"), str) and len(value) == 1


def _schema_format(dialect: Dialect) -> Json:
    named = {"name": "title", "schema": _SCHEMA, "strict": True}
    if dialect is RESPONSES:
        return {"text": {"format": {"type": "json_schema", **named}}}
    if dialect is CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}}


STRUCTURED_CHECKS = build_api_checks(
    (
        ApiCheckSpec(
            "structured",
            {"messages": "CC-28", "responses": "CX-24", "chat": "AG-15"},
            "an answer that is to follow a schema follows it",
            "Titles, plans and verdicts cannot be read, and are asked for again and again.",
            _structured_output,
        ),
    )
)
