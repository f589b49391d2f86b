"""Convert engine requests to vLLM's parameters, and vLLM's logprobs to Dovetail's."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from dovetail.engines.engine import ConstraintSyntax, EngineRequest
from dovetail.engines.sampling import (
    TOKEN_ID_PREFIX,
    explicit_sampling_fields,
    optional_sampling_fields,
)
from dovetail_model import TokenLogprob, Unsupported

#: The field of `StructuredOutputsParams` for each constraint syntax.
CONSTRAINT_FIELDS: Mapping[ConstraintSyntax, str] = {
    "structural_tag": "structural_tag",
    "json_schema": "json",
    "ebnf": "grammar",
}


def to_sampling_params(request: EngineRequest, defaults: Mapping[str, Any]) -> Any:
    """Return vLLM's parameters. `defaults` are those of the model, which the request overrides."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        **defaults,
        **explicit_sampling_fields(sampling, "seed"),
        **optional_sampling_fields(sampling, "min_tokens"),
        "max_tokens": max(request.max_tokens, 1),
        "stop_token_ids": sorted(request.stop_ids),
        "output_kind": RequestOutputKind.DELTA,
        "detokenize": False,
    }
    if sampling.logit_bias:
        fields["logit_bias"] = dict(sampling.logit_bias)
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
    if request.constraint is not None:
        name = CONSTRAINT_FIELDS.get(request.constraint.syntax)
        if name is None:
            raise Unsupported(f"vLLM does not support {request.constraint.syntax} constraints")
        fields["structured_outputs"] = StructuredOutputsParams(**{name: request.constraint.text})
    return SamplingParams(**fields)


def to_token_logprobs(
    ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None
) -> tuple[TokenLogprob, ...]:
    """Convert the logprobs of these ids. Tokens are named by their ids, most likely first."""
    if not logprobs:
        return ()
    return tuple(
        TokenLogprob(
            f"{TOKEN_ID_PREFIX}{id}",
            found[id].logprob,
            tuple(
                (f"{TOKEN_ID_PREFIX}{other}", one.logprob)
                for other, one in sorted(found.items(), key=lambda item: -item[1].logprob)
            ),
        )
        for id, found in zip(ids, logprobs, strict=True)
    )
