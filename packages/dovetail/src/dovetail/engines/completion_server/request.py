"""Requests of vLLM's completions protocol, as of vLLM 0.32.

Two fields are Dovetail extensions for clients that process only token ids. `prompt_bytes` replaces
`prompt` and is the output of `pack_token_ids` in base64. With `ids_only` the output is not
detokenized, the prompt's ids are not returned, and a frame that carries only ids has no other
fields.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest
from dovetail.engines.token_ids import TOKEN_ID_TYPECODE, max_token_id, unpack_token_ids
from dovetail_model import InvalidRequest, Sampling
from dovetail_tokenizers import Tokenizer

DEFAULT_MAX_TOKENS = 16


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """The fields that have an effect. Other fields are accepted and ignored."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
    prompt_bytes: bytes | None = None
    ids_only: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    n: int = 1
    echo: bool | None = False
    logprobs: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int = 0
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_token_ids: bool | None = False
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


def parse_prompt(body: CompletionRequest, tokenizer: Tokenizer) -> "array[int]":
    """Return the token ids of a request's prompt."""
    ids = (
        _prompt_from_field(body.prompt, tokenizer)
        if body.prompt_bytes is None
        else _prompt_from_bytes(body)
    )
    if not ids:
        raise InvalidRequest(
            "`prompt` must be one prompt, as a string or as token ids", param="prompt"
        )
    if (last := max_token_id(ids)) >= tokenizer.size:
        raise InvalidRequest(f"token id {last} is out of vocabulary", param="prompt")
    return ids


def _prompt_from_bytes(body: CompletionRequest) -> "array[int]":
    if body.prompt is not None:
        raise InvalidRequest("`prompt` and `prompt_bytes` cannot be combined", param="prompt_bytes")
    try:
        return unpack_token_ids(body.prompt_bytes or b"")
    except ValueError as fault:
        raise InvalidRequest(
            "`prompt_bytes` must contain 4 bytes per id", param="prompt_bytes"
        ) from fault


def _prompt_from_field(prompt: Any, tokenizer: Tokenizer) -> "array[int]":
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt)
    try:
        return array(TOKEN_ID_TYPECODE, prompt)
    except (TypeError, OverflowError):
        return array(TOKEN_ID_TYPECODE)


def to_engine_request(
    body: CompletionRequest, prompt: "array[int]", eos_ids: Sequence[int], max_new_tokens: int
) -> EngineRequest:
    """Create the engine's request. `max_tokens` defaults to the rest of the context window."""
    if body.n != 1 or body.echo:
        raise InvalidRequest("`echo` is not supported, and `n` must be 1")
    eos = () if body.ignore_eos else eos_ids
    return EngineRequest(
        id=body.request_id or uuid4().hex,
        prompt=prompt,
        max_tokens=max_new_tokens
        if body.max_tokens is None
        else max(1, min(body.max_tokens, max_new_tokens)),
        sampling=_sampling(body),
        stop_ids=frozenset((*eos, *(body.stop_token_ids or ()))),
        constraint=_constraint(body.structured_outputs or {}, body.response_format or {}),
        session=body.session_id,
        priority=-body.priority,  # in this protocol, lower numbers run first
        cache_salt=body.cache_salt,
    )


def _sampling(body: CompletionRequest) -> Sampling:
    return Sampling(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=body.logprobs,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        logit_bias=_logit_bias(body.logit_bias or {}),
    )


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(id), bias) for id, bias in given.items())
    except ValueError as fault:
        raise InvalidRequest(
            "the keys of `logit_bias` must be token ids", param="logit_bias"
        ) from fault


def _constraint(
    outputs: Mapping[str, Any], response_format: Mapping[str, Any]
) -> Constraint | None:
    if response_format.get("type") == "json_schema":
        json_schema = response_format.get("json_schema")
        if not isinstance(json_schema, Mapping):
            raise InvalidRequest("`json_schema` must be an object", param="response_format")
        return Constraint("json_schema", _text(json_schema.get("schema")))
    if response_format.get("type") == "structural_tag":
        return Constraint("structural_tag", _text(response_format))
    if outputs.get("json") is not None:
        return Constraint("json_schema", _text(outputs["json"]))
    if outputs.get("structural_tag") is not None:
        return Constraint("structural_tag", _text(outputs["structural_tag"]))
    grammar = outputs.get("grammar")
    if grammar is None:
        return None
    # One field carries two syntaxes. Only Lark grammars begin with a rule named start.
    return Constraint("lark" if str(grammar).lstrip().startswith("start:") else "gbnf", grammar)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
