"""Checks of errors in every API: the status, and the format that clients parse."""

from dovetail_verify.api_checks import ApiCheckSpec, build_api_checks
from dovetail_verify.black_box.responses_stream import require_rising_sequence
from dovetail_verify.check import CheckFailed, NotApplicable, require
from dovetail_verify.dialects import RESPONSES, Dialect
from dovetail_verify.exchange import HttpExchange, abbreviate
from dovetail_verify.target import TargetServer

_ERROR_EVENTS = ("error", "response.failed")


def require_refused(exchange: HttpExchange, dialect: Dialect, *statuses: int) -> str:
    """Return the error message. Fail the check unless the server rejected the request."""
    status = exchange.status
    if status < 400:
        raise CheckFailed(f"accepted with status {status}")
    require(status < 500, f"returned status {status}, which reports a server error")
    expected = " or ".join(map(str, statuses))
    require(not statuses or status in statuses, f"returned status {status}, expected {expected}")
    return require_error_message(exchange, dialect)


def require_accepted(exchange: HttpExchange, dialect: Dialect, what: str) -> str:
    """Fail the check unless the response is complete: a stream with status 200 can also fail."""
    require(exchange.status == 200, f"{what}: returned status {exchange.status}")
    events = exchange.events if exchange.frames else [exchange.json]
    broken = [part for part in events if part.get("error") or part.get("type") in _ERROR_EVENTS]
    require(not broken, f"{what}: returned status 200 with an error")
    require(
        dialect.finish_reason(exchange) != "None", f"{what}: the response has no reason for its end"
    )
    return "accepted"


def require_error_message(exchange: HttpExchange, dialect: Dialect) -> str:
    """Return the message of an error body. Fail the check unless it has the API's format."""
    body = exchange.json
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        raise CheckFailed("the body has no `error` object")
    message, kind = error.get("message"), error.get("type")
    require(isinstance(message, str) and message, "the error has no message")
    require(isinstance(kind, str) and kind, "the error has no type")
    if dialect.api == "messages":
        require(body.get("type") == "error", 'the body has no "type": "error"')
    return str(message)


def refusal_reason(exchange: HttpExchange) -> str:
    """Return why a request was rejected, in any format. Fail the check if no reason is given."""
    body = exchange.json
    fields = body if isinstance(body, dict) else {}
    error = fields.get("error")
    reason = error.get("message") if isinstance(error, dict) else error
    reason = reason or fields.get("message") or fields.get("detail")
    require(reason, f"rejected with status {exchange.status} without a reason")
    return f"rejected: {abbreviate(str(reason), 120)}"


_ERROR_CLAUSES = {"messages": "CC-15", "responses": "CX-19", "chat": "AG-11"}
_MAX_CONTEXT_TOKENS = 400_000  # a prompt that exceeds a longer window has several megabytes
_UNKNOWN_MODEL = "no-such-org/no-such-model"


async def _bad_json(target: TargetServer, dialect: Dialect) -> str:
    exchange = await target.post(dialect.path, b'{"model": "x", "messages": [')
    return abbreviate(require_refused(exchange, dialect), 120)


async def _missing_conversation(target: TargetServer, dialect: Dialect) -> str:
    body = dialect.body(target.model, ["Hello"])
    body.pop("input" if dialect is RESPONSES else "messages")
    return abbreviate(require_refused(await target.post(dialect.path, body), dialect), 120)


async def _wrong_type(target: TargetServer, dialect: Dialect) -> str:
    body = dialect.body(target.model, ["Hello"])
    body["input" if dialect is RESPONSES else "messages"] = 17
    return abbreviate(require_refused(await target.post(dialect.path, body), dialect), 120)


async def _unknown_model(target: TargetServer, dialect: Dialect) -> str:
    exchange = await target.post(
        dialect.path, dialect.body(_UNKNOWN_MODEL, ["Hello"], max_tokens=16)
    )
    if exchange.status == 200:
        model = exchange.json.get("model")
        require(model == _UNKNOWN_MODEL, f"served, but the response names {model!r}")
        return "served under the requested name"
    return abbreviate(require_refused(exchange, dialect, 400, 404), 120)


async def _wrong_method(target: TargetServer, dialect: Dialect) -> str:
    exchange = await target.request("PUT", dialect.path, {})
    require(exchange.status in (404, 405, 501), f"PUT returned status {exchange.status}")
    return f"PUT returned {exchange.status}"


def require_window(target: TargetServer) -> int:
    """Return the context length, if it is known and a prompt may exceed it."""
    if target.context_length is None:
        raise NotApplicable("the server does not report its context length")
    if target.context_length > _MAX_CONTEXT_TOKENS:
        raise NotApplicable(
            f"a context window of {target.context_length} tokens is too long for this check"
        )
    return target.context_length


def make_letters(count: int) -> str:
    """Return a text of at least `count` tokens."""
    return " ".join("abcdefghijklmnopqrstuvwxyz"[n % 26] for n in range(count))


async def _prompt_too_long(target: TargetServer, dialect: Dialect) -> str:
    body = dialect.body(target.model, [make_letters(require_window(target) + 600)], max_tokens=16)
    if dialect is RESPONSES:
        return await _require_overflow_event(target, RESPONSES.with_streaming(body))
    message = require_refused(await target.post(dialect.path, body), dialect)
    if dialect.api == "messages":
        found = "prompt is too long" in message.lower()
        require(found, f'the message does not contain "prompt is too long": {message!r}')
    return abbreviate(message, 120)


async def _require_overflow_event(target: TargetServer, body: object) -> str:
    exchange = await target.post(RESPONSES.path, body)
    if exchange.status != 200:
        message = require_error_message(exchange, RESPONSES)
        raise CheckFailed(f"rejected with status {exchange.status} ({message}), not in a stream")
    ends = exchange.events_of_type("response.failed")
    require(ends, "the stream has no response.failed")
    code = (ends[-1]["response"].get("error") or {}).get("code")
    require(code == "context_length_exceeded", f"the code is {code!r}")
    require_rising_sequence(exchange)
    return "response.failed, context_length_exceeded"


CHECKS = build_api_checks(
    (
        ApiCheckSpec(
            "errors.bad_json",
            _ERROR_CLAUSES,
            "a body that is not JSON is rejected in the API's error format",
            "Clients show 'unknown error', or retry a request that cannot succeed.",
            _bad_json,
        ),
        ApiCheckSpec(
            "errors.missing",
            _ERROR_CLAUSES,
            "a request without a conversation is rejected in the API's error format",
            "A bug in a client looks like a broken server.",
            _missing_conversation,
        ),
        ApiCheckSpec(
            "errors.wrong_type",
            "WB-1",
            "a field of the wrong type is rejected in the API's error format",
            "A bug in a client looks like a broken server.",
            _wrong_type,
        ),
        ApiCheckSpec(
            "errors.model",
            "WB-2",
            "an unknown model is rejected in the API's error format, or served under its name",
            "For a typo in the model name, a different model responds, or the error is unclear.",
            _unknown_model,
        ),
        ApiCheckSpec(
            "errors.method",
            "WB-3",
            "a wrong method is rejected",
            "Health checks and proxies take a wrong URL for a correct one.",
            _wrong_method,
        ),
        ApiCheckSpec(
            "errors.too_long",
            {"messages": "CC-16", "responses": "CX-9", "chat": "AG-11"},
            "a prompt that exceeds the context window is rejected with the error that triggers "
            "compaction",
            "A long session fails instead of being compacted.",
            _prompt_too_long,
        ),
    )
)
