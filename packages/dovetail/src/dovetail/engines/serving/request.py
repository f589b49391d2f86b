"""What a request of vLLM's completions protocol asks. The shapes were read off vLLM 0.32."""

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest
from dovetail_model import InvalidRequest, Sampling
from dovetail_tokenizers import Tokenizer

DEFAULT_MAX_TOKENS = 16
IDS = "I"  # the type of an array of token ids


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """The fields that make a difference here; others are accepted and have none."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
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


def prompt_ids(body: CompletionRequest, tokenizer: Tokenizer) -> "array[int]":
    """The one prompt of a request, as ids."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt)
    try:
        ids = array(IDS, prompt)
    except (TypeError, OverflowError):
        ids = array(IDS)
    if not ids:
        raise InvalidRequest("one prompt is wanted, as text or as token ids", param="prompt")
    if max(ids) >= tokenizer.size:
        raise InvalidRequest(f"token id {max(ids)} is out of vocabulary", param="prompt")
    return ids


def engine_request(
    body: CompletionRequest, prompt: "array[int]", eos_ids: Sequence[int], room: int
) -> EngineRequest:
    """What the engine is asked. A request that sets no limit has all the room there is."""
    if body.n != 1 or body.echo:
        raise InvalidRequest("there is no echo here, and one choice a request")
    eos = () if body.ignore_eos else eos_ids
    return EngineRequest(
        id=body.request_id or uuid4().hex,
        prompt=prompt,
        max_tokens=room if body.max_tokens is None else max(1, min(body.max_tokens, room)),
        sampling=_sampling(body),
        stop_ids=frozenset((*eos, *(body.stop_token_ids or ()))),
        constraint=_constraint(body.structured_outputs or {}, body.response_format or {}),
        session=body.session_id,
        priority=-body.priority,  # in this protocol the lower number runs sooner
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
    )


def _constraint(outputs: Mapping[str, Any], form: Mapping[str, Any]) -> Constraint | None:
    if form.get("type") == "json_schema":
        return Constraint("json_schema", _text((form.get("json_schema") or {}).get("schema")))
    if form.get("type") == "structural_tag":
        return Constraint("structural_tag", _text(form))
    if outputs.get("json") is not None:
        return Constraint("json_schema", _text(outputs["json"]))
    if outputs.get("structural_tag") is not None:
        return Constraint("structural_tag", _text(outputs["structural_tag"]))
    grammar = outputs.get("grammar")
    if grammar is None:
        return None
    # One field for two notations: only Lark has a rule named start.
    return Constraint("lark" if str(grammar).lstrip().startswith("start:") else "gbnf", grammar)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
