"""What a server answers when it refuses or fails, as errors of ours.

A refusal that the client can mend is a client's error. A wrong key or a model that is gone is the
operator's business: to the client the engine is at fault.
"""

from typing import Any

import msgspec

from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
)

#: How servers of this protocol say that a prompt, or prompt and answer, do not fit.
_CONTEXT_OVERFLOW_PHRASES = ("maximum context length", "maximum model length")
#: How vLLM says with a 503 that it has no room, and with a 500 that its engine has died.
_OVERLOADED_PHRASE = "try again later"
_ENGINE_DEAD_PHRASE = "EngineCore"
_MAX_QUOTE_CHARS = 300


class CompletionErrorBody(msgspec.Struct, frozen=True):
    """An error as it is told, in the answer's body or in a frame of its stream."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


def error_from_status(server_name: str, status: int, content: bytes) -> DovetailError:
    """The error behind a status that is not 200."""
    return _classify_error(server_name, status, _extract_message(content))


def error_from_body(server_name: str, body: CompletionErrorBody) -> DovetailError:
    """The error that a frame of the stream tells of."""
    code = str(body.code)
    status = int(code) if code.isdecimal() else 500
    return _classify_error(server_name, status, body.message or body.type or "no reason given")


def is_priority_rejection(error: DovetailError) -> bool:
    """Whether a server refuses a request because it does not schedule by priority."""
    words = error.message.lower()  # a schema that it refuses may have a key of that name, too
    return isinstance(error, InvalidRequest) and "priority" in words and "schedul" in words


def _classify_error(server_name: str, status: int, message: str) -> DovetailError:
    if status >= 500:
        return _classify_server_error(server_name, status, message)
    if status in (401, 403):
        # Its words are for nobody's eyes: some servers quote the key.
        return EngineError(f"{server_name} refuses the key that it was sent ({status})")
    if status == 404:
        return EngineUnavailable(f"{server_name} has no such model or path: {message}")
    if status == 429:
        return Overloaded(f"{server_name} has no room now: {message}")
    if any(words in message for words in _CONTEXT_OVERFLOW_PHRASES):
        return ContextOverflow(message)
    return InvalidRequest(f"{server_name} refuses the request: {message}")


def _classify_server_error(server_name: str, status: int, message: str) -> DovetailError:
    if status == 503 and _OVERLOADED_PHRASE in message:
        return Overloaded(f"{server_name} has no room now: {message}")
    if status in (502, 503, 504):
        return EngineUnavailable(f"{server_name} is not ready ({status}): {message}")
    if _ENGINE_DEAD_PHRASE in message:
        return EngineUnavailable(f"{server_name} has died: {message}")
    return EngineError(f"{server_name} failed ({status}): {message}")


def _extract_message(content: bytes) -> str:
    """The words of a refusal, in whatever form its server or a proxy before it gives them."""
    try:
        told: Any = msgspec.json.decode(content)
    except msgspec.DecodeError:
        told = content.decode("utf-8", "replace").strip()
    for name in ("error", "message", "detail"):
        if isinstance(told, dict) and name in told:
            told = told[name]
    words = told if isinstance(told, str) else msgspec.json.encode(told).decode()
    return words[:_MAX_QUOTE_CHARS] or "no reason given"
