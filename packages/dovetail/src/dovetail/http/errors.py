"""Errors of the HTTP layer, and the conversion of any error to a response."""

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
    InvalidRequest,
    Overloaded,
)
from dovetail_protocols import Codec
from dovetail_tokenizers import EncodeError

_log = logging.getLogger(__name__)


class HttpError(ClientError):
    """A request that is invalid at the HTTP level, with a fixed status for all APIs."""

    status: ClassVar[int] = 400
    headers: tuple[tuple[str, str], ...] = ()


class UnknownRoute(HttpError):
    """No route has this path. The codec of the API determines the kind of the error."""

    status = 404


class MethodNotAllowed(HttpError):
    status = 405

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{path} does not support {method}. Supported methods: {allowed}.")
        self.headers = (("allow", allowed),)


class RequestTimeout(HttpError):
    status = 408


class UnsupportedEncoding(HttpError):
    status = 415


class WebSocketDisabled(HttpError):
    """WebSockets are disabled. This status makes Codex fall back to HTTP immediately."""

    status = 426
    headers = (("upgrade", "HTTP/1.1"),)


def to_client_error(error: Exception) -> DovetailError:
    """Convert an error to a public error. Details of unexpected errors are only logged.

    Errors of an engine that is unavailable or overloaded get a `retry_after`.
    """
    if isinstance(error, EngineError):
        public_error = to_public_error(error)
        if isinstance(error, EngineUnavailable | Overloaded) and error.retry_after is None:
            public_error.retry_after = RETRY_AFTER_SECONDS
        return public_error
    if isinstance(error, DovetailError):
        return error
    if isinstance(error, EncodeError):  # of the text alone: a retry would fail, too
        return InvalidRequest(str(error))
    _log.error("request_failed", exc_info=error)
    return InternalError("Internal server error. See the server log for details.")


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
