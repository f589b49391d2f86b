"""Refusals that are about HTTP itself, and how any error becomes an answer."""

import logging
from typing import ClassVar

from dovetail.engines.engine import to_public_error
from dovetail.http.exchange import ApiExchange
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InternalError,
    Overloaded,
)
from dovetail_protocols import Codec

RETRY_AFTER_SECONDS = 2.0  # seconds in which an engine may be back, or have room
_log = logging.getLogger(__name__)


class HttpError(ClientError):
    """A request that is wrong before any API has a say. Its status is HTTP's own."""

    status: ClassVar[int] = 400
    headers: tuple[tuple[str, str], ...] = ()


class UnknownRoute(HttpError):
    """No such address. The codec of its API gives the kind of error."""

    status = 404


class MethodNotAllowed(HttpError):
    status = 405

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{method} is not offered at {path}. Offered: {allowed}.")
        self.headers = (("allow", allowed),)


class RequestTimeout(HttpError):
    status = 408


class UnsupportedEncoding(HttpError):
    status = 415


class WebSocketDisabled(HttpError):
    """Codex asks for a WebSocket first. This status makes it turn to HTTP at once."""

    status = 426
    headers = (("upgrade", "HTTP/1.1"),)


def to_client_error(error: Exception) -> DovetailError:
    """The error as a client may hear of it. What was not foreseen is logged, not told.

    An engine that is away or full is worth a second try, so clients hear when.
    """
    if isinstance(error, EngineError):
        safe = to_public_error(error)
        if isinstance(error, EngineUnavailable | Overloaded) and error.retry_after is None:
            safe.retry_after = RETRY_AFTER_SECONDS
        return safe
    if isinstance(error, DovetailError):
        return error
    _log.error("unforeseen", exc_info=error)
    return InternalError("The server failed. Its log says why.")


def error_status(error: DovetailError, codec: Codec) -> int:
    if isinstance(error, HttpError):
        return error.status
    return codec.encode_error(error).status


async def send_error(exchange: ApiExchange, codec: Codec, error: DovetailError) -> None:
    """Answers with an error in the client's own dialect."""
    status = error_status(error, codec)
    more = error.headers if isinstance(error, HttpError) else ()
    if isinstance(error, UnknownRoute):
        error = codec.unknown_route_error(error.message)
    answer = codec.encode_error(error)
    await exchange.respond(status, answer.body, headers=[*answer.headers, *more])
