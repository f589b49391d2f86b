"""Map error responses of an upstream to Dovetail's errors.

A rejection that the client can fix is a client error. A wrong API key or a missing model must be
fixed by the operator, so it is reported to the client as an upstream error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Failure,
    InvalidEngineResponse,
    InvalidRequest,
    Overloaded,
    error_from_failure,
)

_MAX_QUOTE_CHARS = 500
_MAX_RETRY_AFTER_SECONDS = 86_400.0  # longer delays are ignored, as are infinite ones

#: Codes and phrases for a prompt that does not fit: OpenAI, vLLM, llama.cpp, SGLang, LM Studio,
#: Ollama, TRT-LLM and LiteLLM, in this order, if they differ.
_CONTEXT_OVERFLOW_PHRASES = (
    "context_length_exceeded",
    "maximum context length",
    "exceed_context_size",
    "exceeds the available context size",
    "longer than the model's context length",
    "context overflow",
    "context length of only",
    "exceeds context window",
    "exceeds the context",
    "max_num_tokens",
    "contextwindowexceedederror",
    "prompt is too long",
)
_TOKEN_COUNT_PATTERNS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"context length is (?P<window>\d+).*?(?P<prompt>\d+) (?:in the messages|input tokens)",
        r"context length is (?P<window>\d+).*?(?:resulted in|contains) (?P<prompt>\d+)",
        r"\((?P<prompt>\d+) tokens\).*context size \((?P<window>\d+) tokens\)",
        r"too long: (?P<prompt>\d+) tokens > (?P<window>\d+)",
    )
)


@dataclass(frozen=True)
class UpstreamRejection:
    """An error response. `code` and `param` are the server's own values, if it has them."""

    status: int
    message: str
    code: str = ""
    param: str = ""
    retry_after: float | None = None

    @property
    def is_context_overflow(self) -> bool:
        text = f"{self.code} {self.message}".lower()
        return any(phrase in text for phrase in _CONTEXT_OVERFLOW_PHRASES)

    @property
    def token_counts(self) -> tuple[int, int] | None:
        """Return the prompt tokens and the context length, if the message contains both."""
        found = next(
            (match for each in _TOKEN_COUNT_PATTERNS if (match := each.search(self.message))), None
        )
        return (int(found["prompt"]), int(found["window"])) if found else None


def parse_rejection(
    status: int, content: bytes, headers: Mapping[str, str] | None = None
) -> UpstreamRejection:
    """Parse the rejection in a response, in the format of the server or of a proxy before it."""
    body = _decode_body(content)
    if isinstance(body, dict):
        body = next((body[key] for key in ("error", "detail", "message") if body.get(key)), body)
    fields: dict[str, Any] = body if isinstance(body, dict) else {"message": body}
    text = fields.get("message", body)
    message = text if isinstance(text, str) else msgspec.json.encode(text).decode()
    code = fields.get("code") or fields.get("type") or ""
    return UpstreamRejection(
        status=status,
        message=message.strip()[:_MAX_QUOTE_CHARS] or "no reason given",
        code=code if isinstance(code, str) else "",
        param=str(fields.get("param") or ""),
        retry_after=_parse_retry_after((headers or {}).get("retry-after")),
    )


def error_from_rejection(
    server_name: str, model: str, rejection: UpstreamRejection
) -> DovetailError:
    """Return the error for a status other than 200."""
    status, message = rejection.status, rejection.message
    if status < 400:
        return InvalidEngineResponse(f"{server_name} returned the unexpected status {status}")
    if rejection.is_context_overflow:
        return ContextOverflow(_overflow_message(rejection))
    if status in (401, 403):
        # The server's message is not forwarded: clients see this error, and some servers quote the
        # key.
        return EngineError(f"{server_name} rejected the configured API key ({status})")
    if status == 404:
        return EngineError(
            f"{server_name} does not have the model {model!r} or the path: {message}"
        )
    if status == 408 or status == 504:
        return EngineTimeout(f"{server_name} timed out ({status}): {message}")
    if status in (429, 529):
        text = f"{server_name} is overloaded ({status}): {message}"
        return Overloaded(text, retry_after=rejection.retry_after)
    if status in (502, 503):
        text = f"{server_name} is not ready ({status}): {message}"
        return EngineUnavailable(text, retry_after=rejection.retry_after)
    if status >= 500:
        return EngineError(f"{server_name} failed ({status}): {message}")
    return InvalidRequest(f"{server_name} rejected the request ({status}): {message}")


def error_from_stream_failure(server_name: str, failure: Failure) -> DovetailError:
    """Return the error for a failed stream.

    Only errors that the client can fix are client errors.
    """
    rejection = UpstreamRejection(500, failure.message)
    if failure.kind == "context_overflow" or rejection.is_context_overflow:
        return ContextOverflow(_overflow_message(rejection))
    if failure.kind in ("rate_limited", "budget_exceeded"):
        return Overloaded(f"{server_name} is overloaded: {failure.message}")
    if failure.kind in ("unauthenticated", "forbidden", "not_found"):
        return EngineError(f"{server_name} rejected the request: {failure.message}")
    text = f"{server_name}: {failure.message}"
    if failure.kind in ("invalid_request", "unsupported", "too_large"):
        return InvalidRequest(text, param=failure.param)
    return error_from_failure(Failure(failure.kind, text, failure.param))


def _overflow_message(rejection: UpstreamRejection) -> str:
    """Return a message with the phrase that makes harnesses compact their history."""
    if rejection.token_counts is None:
        return f"prompt is too long: {rejection.message}"
    prompt, context_length = rejection.token_counts
    return f"prompt is too long: {prompt} tokens > {context_length} maximum"


def _decode_body(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except FRAME_ERRORS:
        return content.decode("utf-8", "replace")


def _parse_retry_after(text: str | None) -> float | None:
    try:
        seconds = float(text) if text is not None else -1.0
    except ValueError:
        return None  # a date: clients use their own delay
    return seconds if 0 <= seconds <= _MAX_RETRY_AFTER_SECONDS else None
