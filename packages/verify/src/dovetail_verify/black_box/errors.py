"""Refusals in every API: the status, and the form that its clients read."""

from dovetail_verify.api_checks import Row, checks_of
from dovetail_verify.black_box.items import in_sequence
from dovetail_verify.black_box.refusals import error_message, refused
from dovetail_verify.check import Failed, NotApplicable, require
from dovetail_verify.dialects import RESPONSES, Dialect
from dovetail_verify.exchange import short
from dovetail_verify.target import Stage

_FORMS = {"messages": "CC-15", "responses": "CX-19", "chat": "AG-11"}
_LONGEST_WINDOW = 400_000  # tokens: beyond it, overflowing is a request of several megabytes
_UNKNOWN = "no-such-org/no-such-model"


async def _bad_json(stage: Stage, dialect: Dialect) -> str:
    exchange = await stage.post(dialect.path, b'{"model": "x", "messages": [')
    return short(refused(exchange, dialect), 120)


async def _missing(stage: Stage, dialect: Dialect) -> str:
    body = dialect.body(stage.model, ["Hello"])
    body.pop("input" if dialect is RESPONSES else "messages")
    return short(refused(await stage.post(dialect.path, body), dialect), 120)


async def _wrong_type(stage: Stage, dialect: Dialect) -> str:
    body = dialect.body(stage.model, ["Hello"])
    body["input" if dialect is RESPONSES else "messages"] = 17
    return short(refused(await stage.post(dialect.path, body), dialect), 120)


async def _unknown_model(stage: Stage, dialect: Dialect) -> str:
    exchange = await stage.post(dialect.path, dialect.body(_UNKNOWN, ["Hello"], limit=16))
    if exchange.status == 200:
        named = exchange.json.get("model")
        require(named == _UNKNOWN, f"served, but under the name {named!r}")
        return "served under the name that was asked for"
    return short(refused(exchange, dialect, 400, 404), 120)


async def _wrong_method(stage: Stage, dialect: Dialect) -> str:
    exchange = await stage.ask("PUT", dialect.path, {})
    require(exchange.status in (404, 405, 501), f"PUT is answered with status {exchange.status}")
    return f"PUT is answered with {exchange.status}"


async def _too_long(stage: Stage, dialect: Dialect) -> str:
    if stage.window is None:
        raise NotApplicable("the server does not say how long a prompt may be")
    if stage.window > _LONGEST_WINDOW:
        raise NotApplicable(f"a window of {stage.window} tokens is too long to be overflowed here")
    letters = " ".join("abcdefghijklmnopqrstuvwxyz"[n % 26] for n in range(stage.window + 600))
    body = dialect.body(stage.model, [letters], limit=16)
    if dialect is RESPONSES:
        return await _failed_response(stage, RESPONSES.streamed(body))
    message = refused(await stage.post(dialect.path, body), dialect)
    if dialect.api == "messages":
        found = "prompt is too long" in message.lower()
        require(found, f'the message is not "prompt is too long": {message!r}')
    return short(message, 120)


async def _failed_response(stage: Stage, body: object) -> str:
    exchange = await stage.post(RESPONSES.path, body)
    if exchange.status != 200:
        message = error_message(exchange, RESPONSES)
        raise Failed(f"refused with status {exchange.status} ({message}), not in a stream")
    ends = exchange.of("response.failed")
    require(ends, "the stream has no response.failed")
    code = (ends[-1]["response"].get("error") or {}).get("code")
    require(code == "context_length_exceeded", f"the code is {code!r}")
    in_sequence(exchange)
    return "response.failed, context_length_exceeded"


CHECKS = checks_of(
    (
        Row(
            "errors.bad_json",
            _FORMS,
            "a body that is no JSON is refused in the API's own form",
            "Clients show 'unknown error', or retry what can never work.",
            _bad_json,
        ),
        Row(
            "errors.missing",
            _FORMS,
            "a request without its conversation is refused in the API's own form",
            "A mistake in a client looks like a broken server.",
            _missing,
        ),
        Row(
            "errors.wrong_type",
            "WB-1",
            "a field of the wrong type is refused in the API's own form",
            "A mistake in a client looks like a broken server.",
            _wrong_type,
        ),
        Row(
            "errors.model",
            "WB-2",
            "an unknown model is refused in the API's own form, or served under its name",
            "A typo in the model's name is answered by another model, or with a riddle.",
            _unknown_model,
        ),
        Row(
            "errors.method",
            "WB-3",
            "a wrong method is refused",
            "Health checks and proxies take a wrong address for a good one.",
            _wrong_method,
        ),
        Row(
            "errors.too_long",
            {"messages": "CC-16", "responses": "CX-9", "chat": "AG-11"},
            "a prompt over the window is refused in the words that start compaction",
            "A long session dies instead of being compacted.",
            _too_long,
        ),
    )
)
