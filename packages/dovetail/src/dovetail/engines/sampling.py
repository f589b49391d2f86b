"""Sampling parameters and logprobs, with the names that vLLM and SGLang share."""

from typing import Any, get_args

from dovetail.engines.engine import EngineCapabilities, OptionalSampling
from dovetail_model import InvalidRequest, Sampling, Unsupported

#: The logprob of a token for which none is reported, as in OpenAI's API and vLLM.
UNKNOWN_LOGPROB = -9999.0
#: The maximum number of top logprobs per token, as in OpenAI's API.
MAX_TOP_LOGPROBS = 20
#: The prefix of a token that is identified by its id instead of its text, as in vLLM.
TOKEN_ID_PREFIX = "token_id:"

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
#: All optional sampling parameters, in the order in which they are checked.
OPTIONAL_SAMPLING: tuple[OptionalSampling, ...] = get_args(OptionalSampling)
_SEED_MODULUS = 2**63  # servers parse a seed as a signed 64-bit integer


def explicit_sampling_fields(sampling: Sampling, seed_field: str) -> dict[str, Any]:
    """Return the fields that the request sets.

    For others, the server's or model's defaults apply.
    """
    values = {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
    fields = {name: value for name, value in values.items() if value is not None}
    if sampling.seed is not None:
        fields[seed_field] = sampling.seed % _SEED_MODULUS
    return fields


def optional_sampling_fields(sampling: Sampling, min_tokens_field: str) -> dict[str, Any]:
    """Return the optional parameters that the request sets, as vLLM and SGLang encode them."""
    fields: dict[str, Any] = {}
    if sampling.min_tokens:
        fields[min_tokens_field] = sampling.min_tokens
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.logit_bias:
        fields["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias}
    return fields


def check_sampling(sampling: Sampling, capabilities: EngineCapabilities, engine: str) -> None:
    """Raise `Unsupported`, with the field, for a parameter that the engine would not apply."""
    for name in OPTIONAL_SAMPLING:
        if getattr(sampling, name) and name not in capabilities.sampling:
            raise Unsupported(f"{name}: the engine {engine!r} does not support it", param=name)
    if sampling.logprobs is not None and not capabilities.logprobs:
        raise Unsupported(f"logprobs: the engine {engine!r} does not return them", param="logprobs")


def check_top_logprobs(count: int | None) -> None:
    """Raise `InvalidRequest` if more than `MAX_TOP_LOGPROBS` are requested."""
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"`top_logprobs` must be at most {MAX_TOP_LOGPROBS}, got {count}", param="top_logprobs"
        )
