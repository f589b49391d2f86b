"""How tokens are drawn, in the words that vLLM and SGLang share, and what is told of it."""

from typing import Any

from dovetail_model import InvalidRequest, Sampling

#: Stands where no probability is told. OpenAI's word for "tiny", and vLLM's.
UNKNOWN_LOGPROB = -9999.0
#: How many of the likeliest tokens are told beside each one, at most. OpenAI's number.
MOST_LOGPROBS = 20
#: Stands before an id where a token is named by it: vLLM's word.
BY_ID = "token_id:"

_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_SEEDS = 2**63  # servers read a seed as a signed number of 64 bits


def given_values(sampling: Sampling, seed_name: str) -> dict[str, Any]:
    """The values that somebody set. What is left open is the server's, or the model's, default."""
    values = {name: getattr(sampling, name) for name in _NAMES}
    given = {name: value for name, value in values.items() if value is not None}
    if sampling.seed is not None:
        given[seed_name] = sampling.seed % _SEEDS
    return given


def check_logprobs(wanted: int | None) -> None:
    """Raises where more is asked than is ever told."""
    if wanted is not None and not 0 <= wanted <= MOST_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {wanted}: at most {MOST_LOGPROBS} are told", param="top_logprobs"
        )
