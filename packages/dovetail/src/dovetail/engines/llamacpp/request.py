"""A request in the words of llama.cpp's `/completion`, and what it answers when it refuses."""

from typing import Any

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sampling import check_logprobs
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Sampling,
    Unsupported,
)

#: Generated beyond what is asked, and cut: a character takes at most four tokens, and the ids of
#: one that the limit cuts can be told only when it is complete.
MARGIN = 3

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
_SEEDS = 2**32 - 1  # this one itself stands for a random seed


class Fault(msgspec.Struct, frozen=True):
    """An error as llama.cpp tells it, by status or in the stream."""

    message: str = ""
    type: str = ""
    code: int = 500


class _Refusal(msgspec.Struct, frozen=True):
    error: Fault = Fault()


def body(request: EngineRequest, slot: int) -> bytes:
    """The request as JSON. What sampling leaves open is llama.cpp's, or the GGUF file's, default.

    Stop texts are not passed on: ids would be withheld with the text. Who asks watches for them.
    """
    fields: dict[str, Any] = {
        "prompt": request.prompt.tolist(),
        "n_predict": max(request.max_tokens, 1) + MARGIN,
        "id_slot": slot,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "return_progress": True,  # tells what was cached before the first token
        **_sampling(request.sampling),
    }
    if request.constraint is not None:
        if request.constraint.syntax != "gbnf":
            raise Unsupported(f"llama.cpp takes no {request.constraint.syntax} constraints")
        fields["grammar"] = request.constraint.text
    return msgspec.json.encode(fields)


def refusal(status: int, content: bytes) -> DovetailError:
    """The error behind a status that is not 200."""
    try:
        fault = msgspec.json.decode(content, type=_Refusal).error
    except msgspec.DecodeError:
        fault = Fault(code=status)
    return error_of_fault(fault)


def error_of_fault(fault: Fault) -> DovetailError:
    """The error that llama.cpp tells of."""
    if fault.type == "exceed_context_size_error":
        return ContextOverflow(fault.message)
    if fault.code == 400:
        return InvalidRequest(f"llama.cpp refuses the request: {fault.message}")
    if fault.code == 503:
        return EngineUnavailable(f"llama.cpp is not ready: {fault.message}")
    return EngineError(f"llama.cpp failed ({fault.code}): {fault.message}")


def _sampling(sampling: Sampling) -> dict[str, Any]:
    values = {name: getattr(sampling, field) for field, name in _NAMES.items()}
    given = {name: value for name, value in values.items() if value is not None}
    if sampling.seed is not None:
        given["seed"] = sampling.seed % _SEEDS
    if sampling.logprobs is not None:
        check_logprobs(sampling.logprobs)
        given["n_probs"] = max(sampling.logprobs, 1)
    return given
