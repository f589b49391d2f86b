"""A request in the words of vLLM's `/v1/completions`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.engine import ConstraintSyntax, EngineRequest
from dovetail.engines.packing import pack_token_ids
from dovetail.engines.sampling import explicit_sampling_fields
from dovetail.engines.token_ids import PromptEncoder
from dovetail_model import Sampling, Unsupported

#: The member of `structured_outputs` that takes each notation.
CONSTRAINT_FIELDS: Mapping[ConstraintSyntax, str] = {
    "structural_tag": "structural_tag",
    "json_schema": "json",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
}

_FIXED_FIELDS: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
}

_json = msgspec.json.Encoder()


def encode_request(
    request: EngineRequest,
    prompt_encoder: PromptEncoder,
    model: str,
    *,
    with_priority: bool,
    binary_prompt: bool = False,
    extra_fields: Mapping[str, Any] | None = None,
) -> bytes:
    """The request as JSON. What sampling leaves open is the server's, or the model's, default.

    Stop texts are not passed on: who asks watches for them. `priority` says whether the server may
    be told one; there a lower number runs sooner. `packed` is for servers of our own: the prompt as
    bytes, and an answer of ids alone. `extra` are fields of one's own.
    """
    prompt: dict[str, Any] = (
        {"prompt_bytes": pack_token_ids(request.prompt), "ids_only": True}
        if binary_prompt
        else {"prompt": prompt_encoder.encode(request.prompt, request.session)}
    )
    fields: dict[str, Any] = {
        "model": model,
        **prompt,
        "max_tokens": max(request.max_tokens, 1),
        "request_id": request.id,
        **_FIXED_FIELDS,
        **_sampling_fields(request.sampling),
        **_scheduling_fields(request, with_priority),
        **(extra_fields or {}),
    }
    if request.stop_ids:
        fields["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        member = CONSTRAINT_FIELDS.get(request.constraint.syntax)
        if member is None:
            raise Unsupported(f"no {request.constraint.syntax} constraints are taken here")
        fields["structured_outputs"] = {member: request.constraint.text}
    return _json.encode(fields)


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    given = explicit_sampling_fields(sampling, "seed")
    if sampling.logprobs is not None:
        given["logprobs"] = sampling.logprobs
        # Several tokens may have one text, as parts of characters have: one alone would be told.
        given["return_tokens_as_token_ids"] = True
    return given


def _scheduling_fields(request: EngineRequest, with_priority: bool) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    if request.priority and with_priority:
        hints["priority"] = -request.priority
    if request.cache_salt:
        hints["cache_salt"] = request.cache_salt
    if request.session:
        hints["session_id"] = request.session
    return hints
