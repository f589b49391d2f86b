"""A request in the words of SGLang's `/generate`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.sampling import explicit_sampling_fields
from dovetail.engines.sglang.discovery import PriorityOrder
from dovetail.engines.token_ids import PromptEncoder
from dovetail_model import Sampling, Unsupported

#: The member of `sampling_params` that takes each notation.
CONSTRAINT_FIELDS: Mapping[ConstraintSyntax, str] = {
    "structural_tag": "structural_tag",
    "json_schema": "json_schema",
    "ebnf": "ebnf",
    "lark": "ebnf",
    "gbnf": "ebnf",
}

_json = msgspec.json.Encoder()


def encode_request(
    request: EngineRequest,
    prompt_encoder: PromptEncoder,
    rid: str,
    priority_order: PriorityOrder | None,
) -> bytes:
    """The request as JSON. `rid` names it to SGLang; `priority` is None where it takes none.

    Stop texts are not passed on: who asks watches for them. `session_id` lets SGLang keep what a
    session shares. `session_params` are not used: with them SGLang puts the prompt together.
    """
    fields: dict[str, Any] = {
        "rid": rid,
        "input_ids": prompt_encoder.encode(request.prompt, request.session),
        "sampling_params": _sampling_params(request),
        "stream": True,
    }
    if request.sampling.logprobs is not None:
        fields["return_logprob"] = True
        fields["top_logprobs_num"] = request.sampling.logprobs
    if priority_order is not None:  # without one SGLang takes it for the least urgent of all
        fields["priority"] = request.priority if priority_order == "higher" else -request.priority
    if request.session:
        fields["session_id"] = request.session
    if request.cache_salt:  # `cache_salt` is younger, and an older server would pass over it
        fields["extra_key"] = request.cache_salt
    return _json.encode(fields)


def _sampling_params(request: EngineRequest) -> dict[str, Any]:
    """SGLang refuses names that it does not know here, so what is not needed is left out.

    `ignore_eos` is no way to have only our own stop ids: it would switch those off as well.
    """
    params: dict[str, Any] = {
        "max_new_tokens": max(request.max_tokens, 1),
        "skip_special_tokens": False,
        "no_stop_trim": True,
        **_sampling_fields(request.sampling),
    }
    if request.stop_ids:
        params["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        params[_constraint_field(request.constraint)] = request.constraint.text
    return params


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    given = explicit_sampling_fields(sampling, "sampling_seed")
    if given.get("top_k") == 0:  # to others that is the whole vocabulary, to SGLang an error
        given["top_k"] = -1
    return given


def _constraint_field(constraint: Constraint) -> str:
    member = CONSTRAINT_FIELDS.get(constraint.syntax)
    if member is None:
        raise Unsupported(f"SGLang takes no {constraint.syntax} constraints")
    return member
