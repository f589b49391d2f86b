"""Encode requests for SGLang's `/generate`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.sampling import explicit_sampling_fields, optional_sampling_fields
from dovetail.engines.sglang.discovery import PriorityOrder
from dovetail.engines.token_ids import PromptEncoder
from dovetail_model import Sampling, Unsupported

#: The field of `sampling_params` for each constraint syntax.
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
    """Encode the request as JSON.

    `rid` is the request's id in SGLang. Without a `priority_order` no priority is sent. Stop
    strings are not sent: the caller checks for them. `session_id` lets SGLang retain the prefix
    that the requests of a session share. `session_params` are not used: with them, SGLang would
    assemble the prompt itself.
    """
    fields: dict[str, Any] = {
        "rid": rid,
        "input_ids": prompt_encoder.encode(
            request.prompt, request.session, ends_session=request.ends_session
        ),
        "sampling_params": _sampling_params(request),
        "stream": True,
    }
    if request.sampling.logprobs is not None:
        fields["return_logprob"] = True
        fields["top_logprobs_num"] = request.sampling.logprobs
    if priority_order is not None:  # without a value SGLang assumes the lowest priority
        fields["priority"] = request.priority if priority_order == "higher" else -request.priority
    if request.session:
        fields["session_id"] = request.session
    if request.cache_salt:  # older servers ignore `cache_salt`
        fields["extra_key"] = request.cache_salt
    return _json.encode(fields)


def _sampling_params(request: EngineRequest) -> dict[str, Any]:
    """Return only the fields that are needed: SGLang rejects unknown names here.

    `ignore_eos` also disables `stop_token_ids`, so the caller ends the output at the request's own.
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
    fields = explicit_sampling_fields(sampling, "sampling_seed")
    fields |= optional_sampling_fields(sampling, "min_new_tokens")
    if fields.get("top_k") == 0:  # disables the filter elsewhere, but is an error in SGLang
        fields["top_k"] = -1
    return fields


def _constraint_field(constraint: Constraint) -> str:
    member = CONSTRAINT_FIELDS.get(constraint.syntax)
    if member is None:
        raise Unsupported(f"SGLang does not support {constraint.syntax} constraints")
    return member
