"""Errors in the form shared by OpenAI's APIs, before and within a stream."""

from collections.abc import Mapping

import msgspec

from dovetail_model import DovetailError, Failure
from dovetail_protocols.codec import ErrorResponse
from dovetail_protocols.rate_limits import retry_headers

_REQUEST, _SERVER = "invalid_request_error", "server_error"

ERROR_KINDS: dict[str, tuple[int, str, str | None]] = {
    "invalid_request": (400, _REQUEST, None),
    "unsupported": (400, _REQUEST, "unsupported_parameter"),
    "context_overflow": (400, _REQUEST, "context_length_exceeded"),
    "unauthenticated": (401, _REQUEST, "invalid_api_key"),
    "forbidden": (403, _REQUEST, "permission_denied"),
    "not_found": (404, _REQUEST, "model_not_found"),
    "response_not_found": (404, _REQUEST, None),
    "previous_not_found": (400, _REQUEST, "previous_response_not_found"),
    "too_large": (413, _REQUEST, "request_too_large"),
    "rate_limited": (429, "rate_limit_error", "rate_limit_exceeded"),
    "engine": (500, _SERVER, "engine_error"),
    "engine_response": (502, _SERVER, "bad_gateway"),
    "engine_unavailable": (503, _SERVER, "service_unavailable"),
    "overloaded": (503, _SERVER, "server_is_overloaded"),
    "engine_timeout": (504, _SERVER, "timeout"),
    "internal": (500, _SERVER, "internal_error"),
    "budget_exceeded": (429, "insufficient_quota", "insufficient_quota"),
}
"""Error kind -> HTTP status, type and code."""


def encode_error(error: DovetailError) -> ErrorResponse:
    """Encode an error as an HTTP response."""
    status = ERROR_KINDS.get(error.kind, ERROR_KINDS["internal"])[0]
    return ErrorResponse(status, error_body(error.to_failure()), retry_headers(error))


def error_body(failure: Failure) -> bytes:
    """Return the JSON body. In a stream it is the data of a frame, on which the SDK raises."""
    _, kind, code = ERROR_KINDS.get(failure.kind, ERROR_KINDS["internal"])
    error = {"message": failure.message, "type": kind, "param": failure.param, "code": code}
    return msgspec.json.encode({"error": error})


def error_kind(error: Mapping[str, object]) -> str:
    """Map an upstream server's error to an error kind by its code, status or type.

    OpenAI's codes are words; vLLM sends the HTTP status as the code.
    """
    code, type = error.get("code"), error.get("type")
    for kind, (status, theirs, known) in ERROR_KINDS.items():
        if code in (known, status) and (code is not None or theirs == type):
            return kind
    return "engine"
