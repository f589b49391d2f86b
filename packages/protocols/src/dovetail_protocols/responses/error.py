"""Errors in the API's own form: a body before any stream, a code inside one."""

import math

import msgspec

from dovetail_model import DovetailError
from dovetail_protocols.codec import ErrorAnswer

_INVALID = "invalid_request_error"

_BODY: dict[str, tuple[int, str, str | None]] = {
    "invalid_request": (400, _INVALID, None),
    "unsupported": (400, _INVALID, "unsupported_parameter"),
    "context_overflow": (400, _INVALID, "context_length_exceeded"),
    "unauthenticated": (401, _INVALID, "invalid_api_key"),
    "forbidden": (403, _INVALID, "permission_denied"),
    "not_found": (404, _INVALID, "not_found"),
    "too_large": (413, _INVALID, "request_too_large"),
    "rate_limited": (429, "rate_limit_error", "rate_limit_exceeded"),
    "engine": (500, "server_error", "server_error"),
    "engine_unavailable": (503, "server_error", "engine_unavailable"),
    "overloaded": (503, "server_error", "server_is_overloaded"),
    "engine_timeout": (504, "server_error", "timeout"),
    "internal": (500, "server_error", "server_error"),
}
"""Kind to status, type and code."""

_STREAM = {
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "unauthenticated": "invalid_prompt",
    "forbidden": "invalid_prompt",
    "not_found": "invalid_prompt",
    "too_large": "invalid_prompt",
}
"""Kind to the code of a failed response. A client gives up at the codes of its own faults, and at
`server_is_overloaded` too: a server that is only busy says `server_error`, and is asked again."""


def encode_error(error: DovetailError) -> ErrorAnswer:
    status, kind, code = _BODY.get(error.kind, _BODY["internal"])
    body = {"message": error.message, "type": kind, "param": error.param, "code": code}
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after is not None:
        headers = (("retry-after", str(math.ceil(error.retry_after))),)
    return ErrorAnswer(status, msgspec.json.encode({"error": body}), headers)


def code_in_stream(kind: str) -> str:
    """The code of a failed response. What is not listed is ours or the engine's fault."""
    return _STREAM.get(kind, "server_error")
