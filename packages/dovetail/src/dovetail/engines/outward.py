"""What clients may hear of an engine's fault. Where engines live is the operator's business."""

import re

from dovetail_model import DovetailError, EngineError

_ENGINE_URL = re.compile(r"\b(?:https?|unix)://[^\s,;)\'\"]+")


def to_public_error(error: DovetailError) -> DovetailError:
    """The error without addresses of engines. They stand in the log, with the replica."""
    if not isinstance(error, EngineError):
        return error
    message = _ENGINE_URL.sub("the engine", error.message)
    safe = type(error)(message, param=error.param, retry_after=error.retry_after)
    safe.reason = error.reason
    return safe
