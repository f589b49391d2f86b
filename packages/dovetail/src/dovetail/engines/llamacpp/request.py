"""Encode requests for llama.cpp's `/completion`, and map its errors."""

from typing import Any

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sampling import check_top_logprobs
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Sampling,
    Unsupported,
)

#: Tokens generated beyond the limit, which are truncated: a character has at most four tokens, and
#: the ids of a character that the limit splits are reported only when it is complete.
EXTRA_TOKENS = 3

_SAMPLING_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
_SEED_MODULUS = 2**32 - 1  # the modulus itself selects a random seed


class LlamaCppErrorBody(msgspec.Struct, frozen=True):
    """An error of llama.cpp, in a response or in the stream."""

    message: str = ""
    type: str = ""
    code: int = 500


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: LlamaCppErrorBody = LlamaCppErrorBody()


def encode_request(request: EngineRequest, slot: int) -> bytes:
    """Encode the request as JSON. llama.cpp's or the GGUF file's sampling defaults apply.

    Stop strings are not sent: llama.cpp would withhold ids together with the text. The caller
    checks for them.
    """
    fields: dict[str, Any] = {
        "prompt": request.prompt.tolist(),
        "n_predict": max(request.max_tokens, 1) + EXTRA_TOKENS,
        "id_slot": slot,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "return_progress": True,  # reports cached tokens before the first token
        **_sampling_fields(request.sampling),
    }
    if request.constraint is not None:
        if request.constraint.syntax != "gbnf":
            raise Unsupported(f"llama.cpp does not support {request.constraint.syntax} constraints")
        fields["grammar"] = request.constraint.text
    return msgspec.json.encode(fields)


def error_from_status(status: int, content: bytes) -> DovetailError:
    """Return the error for a status other than 200."""
    try:
        fault = msgspec.json.decode(content, type=_ErrorResponse).error
    except FRAME_ERRORS:
        fault = LlamaCppErrorBody(code=status)
    return error_from_body(fault)


def error_from_body(body: LlamaCppErrorBody) -> DovetailError:
    """Return the error that llama.cpp reports."""
    if body.type == "exceed_context_size_error":
        return ContextOverflow(body.message)
    if body.code == 400:
        return InvalidRequest(f"llama.cpp rejected the request: {body.message}")
    if body.code == 503:
        return EngineUnavailable(f"llama.cpp is not ready: {body.message}")
    return EngineError(f"llama.cpp failed ({body.code}): {body.message}")


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    values = {name: getattr(sampling, field) for field, name in _SAMPLING_FIELDS.items()}
    fields = {name: value for name, value in values.items() if value is not None}
    if sampling.seed is not None:
        fields["seed"] = sampling.seed % _SEED_MODULUS
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.logit_bias:
        fields["logit_bias"] = [[id, bias] for id, bias in sampling.logit_bias]
    if sampling.logprobs is not None:
        check_top_logprobs(sampling.logprobs)
        fields["n_probs"] = max(sampling.logprobs, 1)
    return fields
