"""Map error responses of a server to Dovetail's errors.

A rejection that the client can fix is a client error. A wrong API key or a missing model must be
fixed by the operator, so it is reported to the client as an engine error.
"""

from typing import Any

import msgspec

from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidEngineResponse,
    InvalidRequest,
    Overloaded,
)

#: Phrases in errors about a prompt, or prompt and output, that exceed the context window.
_CONTEXT_OVERFLOW_PHRASES = ("maximum context length", "maximum model length")
#: Appears in vLLM's 503 when it is overloaded and in its 500 when its engine has died.
_OVERLOADED_PHRASE = "try again later"
_ENGINE_DEAD_PHRASE = "EngineCore"
_MAX_QUOTE_CHARS = 300


class CompletionErrorBody(msgspec.Struct, frozen=True):
    """An error in the body of a response or in a frame of a stream."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


def error_from_status(server_name: str, status: int, content: bytes) -> DovetailError:
    """Return the error for a status other than 200."""
    return _classify_error(server_name, status, _extract_message(content))


def error_from_body(server_name: str, body: CompletionErrorBody) -> DovetailError:
    """Return the error for an error frame of a stream."""
    code = str(body.code)
    status = int(code) if code.isdecimal() else 500
    return _classify_error(server_name, status, body.message or body.type or "no reason given")


def is_priority_rejection(error: DovetailError) -> bool:
    """Return whether a server rejected a request because it does not schedule by priority."""
    # both words are required: a rejected schema may have a key named "priority"
    text = error.message.lower()
    return isinstance(error, InvalidRequest) and "priority" in text and "schedul" in text


def _classify_error(server_name: str, status: int, message: str) -> DovetailError:
    if status < 400:
        return InvalidEngineResponse(f"{server_name} returned the unexpected status {status}")
    if status in (429, 529):
        return Overloaded(f"{server_name} is overloaded: {message}")
    if status >= 500:
        return _classify_server_error(server_name, status, message)
    if status in (401, 403):
        # The server's message is not forwarded: some servers quote the key.
        return EngineError(f"{server_name} rejected the configured API key ({status})")
    if status == 404:
        return EngineUnavailable(f"{server_name} does not have this model or path: {message}")
    if any(phrase in message for phrase in _CONTEXT_OVERFLOW_PHRASES):
        return ContextOverflow(message)
    return InvalidRequest(f"{server_name} rejected the request: {message}")


def _classify_server_error(server_name: str, status: int, message: str) -> DovetailError:
    if status == 503 and _OVERLOADED_PHRASE in message:
        return Overloaded(f"{server_name} is overloaded: {message}")
    if status in (502, 503, 504):
        return EngineUnavailable(f"{server_name} is not ready ({status}): {message}")
    if _ENGINE_DEAD_PHRASE in message:
        return EngineUnavailable(f"{server_name} has died: {message}")
    return EngineError(f"{server_name} failed ({status}): {message}")


def _extract_message(content: bytes) -> str:
    """Return the message of an error body in the format of the server or of a proxy before it."""
    try:
        decoded: Any = msgspec.json.decode(content)
    except FRAME_ERRORS:
        decoded = content.decode("utf-8", "replace").strip()
    for name in ("error", "message", "detail"):
        if isinstance(decoded, dict) and name in decoded:
            decoded = decoded[name]
    text = decoded if isinstance(decoded, str) else msgspec.json.encode(decoded).decode()
    return text[:_MAX_QUOTE_CHARS] or "no reason given"
