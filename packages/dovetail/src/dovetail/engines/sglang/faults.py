"""How SGLang says that it refuses or failed: by a status, in a frame, or as a way to finish."""

import msgspec

from dovetail.engines.completions.errors import Fault, error_of_fault, error_of_status
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
)

WHO = "SGLang"

#: Its words for a prompt, or prompt and answer, that do not fit the window or the cache's pool.
_TOO_LONG = (
    "model's context length",
    "maximum context length",
    "exceeds the maximum allowed length",
    "exceeds the KV memory budget",
)
_QUEUE_IS_FULL = "queue is full"


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended. `matched` is the token or text that stopped it."""

    type: str = ""
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


def refusal(status: int, content: bytes) -> DovetailError:
    """The error behind a status that is not 200."""
    return _read(error_of_status(WHO, status, content))


def failure(fault: Fault) -> DovetailError:
    """The error that a frame of the stream tells of."""
    return _read(error_of_fault(WHO, fault))


def abortion(ending: Ending) -> DovetailError:
    """The error of a turn that SGLang gave up. Without a status nobody is to blame."""
    message = ending.message or "no reason given"
    if ending.status_code is None:
        return EngineUnavailable(f"{WHO} gave the request up: {message}")
    return failure(Fault(message=message, code=ending.status_code))


def _read(error: DovetailError) -> DovetailError:
    if isinstance(error, InvalidRequest) and any(words in error.message for words in _TOO_LONG):
        return ContextOverflow(error.message)
    if isinstance(error, EngineUnavailable) and _QUEUE_IS_FULL in error.message:
        return Overloaded(error.message)
    return error
