"""Errors in the form of the Messages API, before and within a stream."""

import msgspec

from dovetail_model import DovetailError, Failure
from dovetail_protocols.codec import ErrorResponse
from dovetail_protocols.field_names import rename_field
from dovetail_protocols.rate_limits import retry_headers
from dovetail_protocols.sse import frame

_KINDS: dict[str, tuple[int, str]] = {
    "invalid_request": (400, "invalid_request_error"),
    "unauthenticated": (401, "authentication_error"),
    "forbidden": (403, "permission_error"),
    "not_found": (404, "not_found_error"),
    "too_large": (413, "request_too_large"),
    "context_overflow": (400, "invalid_request_error"),
    "rate_limited": (429, "rate_limit_error"),
    "budget_exceeded": (429, "rate_limit_error"),
    "unsupported": (400, "invalid_request_error"),
    "engine": (500, "api_error"),
    "engine_response": (502, "api_error"),
    "engine_unavailable": (503, "overloaded_error"),
    "engine_timeout": (503, "api_error"),
    "overloaded": (529, "overloaded_error"),
    "internal": (500, "api_error"),
}
_DEFAULT_KIND = _KINDS["internal"]
_OVERFLOW = "prompt is too long"
# The SDK's tool runner requests threads. On this error it sends the full history instead.
_FIELD_NAMES = {
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def encode_error(error: DovetailError) -> ErrorResponse:
    """Encode an error with the status that the API's clients expect for its kind."""
    error = rename_field(error, _FIELD_NAMES)
    status, _ = _KINDS.get(error.kind, _DEFAULT_KIND)
    return ErrorResponse(status, _body(error.to_failure()), retry_headers(error))


def error_frame(failure: Failure) -> bytes:
    """Encode an error inside a stream. No frame may follow it."""
    return frame(_body(failure), b"error")


def _body(failure: Failure) -> bytes:
    _, kind = _KINDS.get(failure.kind, _DEFAULT_KIND)
    error: dict[str, object] = {"type": kind, "message": _message(failure)}
    if (failure.kind, failure.param) == ("unsupported", "thread"):
        error["details"] = _NO_THREADS
    return msgspec.json.encode({"type": "error", "error": error})


def _message(failure: Failure) -> str:
    """Return the message with the texts that clients look for.

    This API has no field for the offending parameter, so the message starts with it. Only the
    words "prompt is too long" make Claude Code compact its conversation automatically.
    """
    message = failure.message
    if failure.kind == "context_overflow" and not message.startswith(_OVERFLOW):
        return f"{_OVERFLOW}: {message}"
    if failure.param and not message.startswith(failure.param):
        return f"{failure.param}: {message}"
    return message
