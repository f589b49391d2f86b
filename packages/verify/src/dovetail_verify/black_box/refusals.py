"""How each API has to refuse, and what is no refusal."""

from dovetail_verify.check import CheckFailed, require
from dovetail_verify.dialects import Dialect
from dovetail_verify.exchange import HttpExchange, abbreviate

_ERROR_EVENTS = ("error", "response.failed")


def require_refused(exchange: HttpExchange, dialect: Dialect, *statuses: int) -> str:
    """The message of an error in the form of the API. Fails the check where it is none."""
    status = exchange.status
    if status < 400:
        raise CheckFailed(f"accepted with status {status}")
    require(status < 500, f"answered with status {status}, as if the server were at fault")
    wanted = " or ".join(map(str, statuses))
    require(not statuses or status in statuses, f"answered with status {status}, not {wanted}")
    return require_error_message(exchange, dialect)


def require_accepted(exchange: HttpExchange, dialect: Dialect, what: str) -> str:
    """Fails the check unless a request was answered to its end: a stream can also fail with 200."""
    require(exchange.status == 200, f"{what}: answered with status {exchange.status}")
    told = exchange.events if exchange.frames else [exchange.json]
    broken = [part for part in told if part.get("error") or part.get("type") in _ERROR_EVENTS]
    require(not broken, f"{what}: answered with status 200, and with an error")
    require(
        dialect.finish_reason(exchange) != "None", f"{what}: the answer does not say why it ended"
    )
    return "accepted"


def require_error_message(exchange: HttpExchange, dialect: Dialect) -> str:
    """The message of an error body. Fails the check unless it has the form of the API."""
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
    """Why something is refused, in whatever form. Fails the check where nothing is said."""
    body = exchange.json
    held = body if isinstance(body, dict) else {}
    error = held.get("error")
    words = error.get("message") if isinstance(error, dict) else error
    words = words or held.get("message") or held.get("detail")
    require(words, f"refused with status {exchange.status}, and without a reason")
    return f"refused: {abbreviate(str(words), 120)}"
