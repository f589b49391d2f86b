"""How SGLang says that it refuses or failed: by a status, in a frame, or as a way to finish."""

import msgspec

from dovetail.engines.completions.errors import (
    CompletionErrorBody,
    error_from_body,
    error_from_status,
)
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
)

SERVER_NAME = "SGLang"

#: Its words for a prompt, or prompt and answer, that do not fit the window or the cache's pool.
_CONTEXT_OVERFLOW_PHRASES = (
    "model's context length",
    "maximum context length",
    "exceeds the maximum allowed length",
    "exceeds the KV memory budget",
)
_QUEUE_FULL_PHRASE = "queue is full"


class SglangFinishReason(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended. `matched` is the token or text that stopped it."""

    type: str = ""
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


def sglang_error_from_status(status: int, content: bytes) -> DovetailError:
    """The error behind a status that is not 200."""
    return _refine_error(error_from_status(SERVER_NAME, status, content))


def sglang_error_from_body(body: CompletionErrorBody) -> DovetailError:
    """The error that a frame of the stream tells of."""
    return _refine_error(error_from_body(SERVER_NAME, body))


def abort_error(finish_reason: SglangFinishReason) -> DovetailError:
    """The error of a turn that SGLang gave up. Without a status nobody is to blame."""
    message = finish_reason.message or "no reason given"
    if finish_reason.status_code is None:
        return EngineUnavailable(f"{SERVER_NAME} gave the request up: {message}")
    return sglang_error_from_body(
        CompletionErrorBody(message=message, code=finish_reason.status_code)
    )


def _refine_error(error: DovetailError) -> DovetailError:
    if isinstance(error, InvalidRequest) and any(
        words in error.message for words in _CONTEXT_OVERFLOW_PHRASES
    ):
        return ContextOverflow(error.message)
    if isinstance(error, EngineUnavailable) and _QUEUE_FULL_PHRASE in error.message:
        return Overloaded(error.message)
    return error
