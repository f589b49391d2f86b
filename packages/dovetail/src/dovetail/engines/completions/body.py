"""A request in the words of vLLM's `/v1/completions`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.engine import EngineRequest, Syntax
from dovetail.engines.packing import pack
from dovetail.engines.sampling import given_values
from dovetail.engines.token_ids import Spelling
from dovetail_model import Sampling, Unsupported

#: The member of `structured_outputs` that takes each notation.
CONSTRAINTS: Mapping[Syntax, str] = {
    "structural_tag": "structural_tag",
    "json_schema": "json",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
}

_FIXED: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
}

_json = msgspec.json.Encoder()


def body(
    request: EngineRequest,
    spelling: Spelling,
    model: str,
    *,
    priority: bool,
    packed: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The request as JSON. What sampling leaves open is the server's, or the model's, default.

    Stop texts are not passed on: who asks watches for them. `priority` says whether the server may
    be told one; there a lower number runs sooner. `packed` is for servers of our own: the prompt as
    bytes, and an answer of ids alone. `extra` are fields of one's own.
    """
    prompt: dict[str, Any] = (
        {"prompt_bytes": pack(request.prompt), "ids_only": True}
        if packed
        else {"prompt": spelling.spell(request.prompt, request.session)}
    )
    fields: dict[str, Any] = {
        "model": model,
        **prompt,
        "max_tokens": max(request.max_tokens, 1),
        "request_id": request.id,
        **_FIXED,
        **_sampling(request.sampling),
        **_hints(request, priority),
        **(extra or {}),
    }
    if request.stop_ids:
        fields["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        member = CONSTRAINTS.get(request.constraint.syntax)
        if member is None:
            raise Unsupported(f"no {request.constraint.syntax} constraints are taken here")
        fields["structured_outputs"] = {member: request.constraint.text}
    return _json.encode(fields)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    given = given_values(sampling, "seed")
    if sampling.logprobs is not None:
        given["logprobs"] = sampling.logprobs
        # Several tokens may have one text, as parts of characters have: one alone would be told.
        given["return_tokens_as_token_ids"] = True
    return given


def _hints(request: EngineRequest, priority: bool) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    if request.priority and priority:
        hints["priority"] = -request.priority
    if request.cache_salt:
        hints["cache_salt"] = request.cache_salt
    if request.session:
        hints["session_id"] = request.session
    return hints
