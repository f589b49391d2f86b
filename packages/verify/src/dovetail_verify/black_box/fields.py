"""Checks of request fields: honoured, or rejected by name, or reported; never silently ignored."""

from dovetail_verify.api_checks import ApiCheckSpec, build_api_checks
from dovetail_verify.black_box.errors import require_accepted, require_refused
from dovetail_verify.black_box.samples import QUESTION, is_truncated
from dovetail_verify.check import CheckFailed, NotApplicable, check, require
from dovetail_verify.dialects import CHAT, RESPONSES, Dialect, Json
from dovetail_verify.exchange import abbreviate
from dovetail_verify.target import TargetServer

_PROMPT = "Is the sky blue? Reply yes or no."
_REPLIES = ("yes", "no")
_CONSTRAINTS: dict[str, object] = {
    "guided_choice": list(_REPLIES),
    "structured_outputs": {"regex": "yes|no"},
    "grammar": 'root ::= "yes" | "no"',
    "regex": "yes|no",
}
_UNKNOWN_FIELD = "a_field_of_tomorrow"
_INVALID_SCHEMA: Json = {"type": "object", "properties": {"title": {"type": "strnig"}}}


async def _constraints(target: TargetServer, dialect: Dialect) -> str:
    enforced = []
    for field, value in _CONSTRAINTS.items():
        body = {**dialect.body(target.model, [_PROMPT], max_tokens=512), field: value}
        exchange = await target.post(dialect.path, body)
        if exchange.status != 200:
            require_refused(exchange, dialect)
            require(field in exchange.body.decode(), f"{field}: the error does not name it")
            continue
        if is_truncated(dialect, exchange):
            raise NotApplicable("the response was truncated by the token limit")
        text = dialect.text(exchange).strip()
        require(text in _REPLIES, f"{field}: ignored, the response is {abbreviate(text, 60)!r}")
        enforced.append(field)
    return f"enforced: {', '.join(enforced) or 'none'}; the others are rejected"


async def _invalid_schema(target: TargetServer, dialect: Dialect) -> str:
    body = {**dialect.body(target.model, [QUESTION]), **_invalid_format(dialect)}
    message = require_refused(await target.post(dialect.path, body), dialect)
    require(
        "schema" in message or "strnig" in message,
        f"the error does not state the reason: {message}",
    )
    return abbreviate(message, 120)


def _invalid_format(dialect: Dialect) -> Json:
    schema = {"name": "title", "schema": _INVALID_SCHEMA, "strict": True}
    if dialect is RESPONSES:
        return {"text": {"format": {"type": "json_schema", **schema}}}
    if dialect is CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"output_config": {"format": {"type": "json_schema", "schema": _INVALID_SCHEMA}}}


async def _reported(target: TargetServer, dialect: Dialect) -> str:
    body = {**dialect.body(target.model, [QUESTION]), _UNKNOWN_FIELD: 1}
    exchange = await target.post(dialect.path, body)
    require_accepted(exchange, dialect, "an unknown field")
    found = [name for name, value in exchange.headers.items() if _UNKNOWN_FIELD in value]
    if not found:
        raise CheckFailed(f"no header reports that {_UNKNOWN_FIELD} has no effect")
    return found[0]


@check(
    "responses.fields.input",
    "F-4",
    title="an error about the input names `input`",
    why="A client that sent `input` looks for a field that it does not have.",
)
async def names_input(target: TargetServer) -> str:
    body = {**RESPONSES.body(target.model, [QUESTION]), "input": 5}
    exchange = await target.post(RESPONSES.path, body)
    message = require_refused(exchange, RESPONSES, 400, 422)
    param = exchange.json["error"].get("param")
    named = isinstance(param, str) and param.startswith("input")
    require(named, f"param is {param!r}: {abbreviate(message, 80)}")
    return str(param)


CHECKS = (
    *build_api_checks(
        (
            ApiCheckSpec(
                "fields.constraint",
                "F-1",
                "constraints of other servers are enforced, or rejected by name",
                "Programs that rely on the form of the text fail later, without an error here.",
                _constraints,
            ),
            ApiCheckSpec(
                "fields.schema",
                "F-2",
                "an invalid schema of a strict format is rejected",
                "The text has any form, and the mistake in the schema is never found.",
                _invalid_schema,
            ),
            ApiCheckSpec(
                "fields.reported",
                "F-3",
                "a field without effect is reported in a header",
                "Users search for the cause of an effect that the server never had.",
                _reported,
            ),
        )
    ),
    names_input,
)
