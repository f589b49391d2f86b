"""How tokens are drawn, in the words that vLLM and SGLang share, and what is told of it."""

from typing import Any

from dovetail_model import InvalidRequest, Sampling

#: Stands where no probability is told. OpenAI's word for "tiny", and vLLM's.
UNKNOWN_LOGPROB = -9999.0
#: How many of the likeliest tokens are told beside each one, at most. OpenAI's number.
MAX_TOP_LOGPROBS = 20
#: Stands before an id where a token is named by it: vLLM's word.
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
_SEED_MODULUS = 2**63  # servers read a seed as a signed number of 64 bits


def explicit_sampling_fields(sampling: Sampling, seed_field: str) -> dict[str, Any]:
    """The values that somebody set. What is left open is the server's, or the model's, default."""
    values = {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
    given = {name: value for name, value in values.items() if value is not None}
    if sampling.seed is not None:
        given[seed_field] = sampling.seed % _SEED_MODULUS
    return given


def check_top_logprobs(count: int | None) -> None:
    """Raises where more is asked than is ever told."""
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {count}: at most {MAX_TOP_LOGPROBS} are told", param="top_logprobs"
        )
