"""Errors of HTTP itself, and the conversion of any error to a response."""

import logging
from typing import ClassVar

from dovetail.access.admission import RETRY_AFTER_SECONDS
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

_log = logging.getLogger(__name__)


class HttpError(ClientError):
    """A request that is invalid before any API is involved. Its status is that of HTTP."""

    status: ClassVar[int] = 400
    headers: tuple[tuple[str, str], ...] = ()


class UnknownRoute(HttpError):
    """No such path. The codec of its API gives the kind of error."""

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
    """Codex tries a WebSocket first. This status makes it fall back to HTTP at once."""

    status = 426
    headers = (("upgrade", "HTTP/1.1"),)


def to_client_error(error: Exception) -> DovetailError:
    """Convert an error to one that may be shown to a client. An unexpected one is only logged.

    Errors of an engine that is unavailable or full get a `retry_after`.
    """
    if isinstance(error, EngineError):
        public_error = to_public_error(error)
        if isinstance(error, EngineUnavailable | Overloaded) and error.retry_after is None:
            public_error.retry_after = RETRY_AFTER_SECONDS
        return public_error
    if isinstance(error, DovetailError):
        return error
    _log.error("request_failed", exc_info=error)
    return InternalError("The server failed. Its log says why.")


def error_status(error: DovetailError, codec: Codec) -> int:
    if isinstance(error, HttpError):
        return error.status
    return codec.encode_error(error).status


async def send_error(exchange: ApiExchange, codec: Codec, error: DovetailError) -> None:
    """Send an error in the format of the API."""
    status = error_status(error, codec)
    headers = error.headers if isinstance(error, HttpError) else ()
    if isinstance(error, UnknownRoute):
        error = codec.unknown_route_error(error.message)
    encoded = codec.encode_error(error)
    await exchange.respond(status, encoded.body, headers=[*encoded.headers, *headers])
