"""vLLM's completions protocol: what a request asks, and the bytes of the answer.

The shapes were read off vLLM 0.32. A chunk names every field of its choice, null or not, and the
usage comes in a chunk of its own without choices.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.scripted.cache import IDS
from dovetail_model import InvalidRequest, Sampling
from dovetail_tokenizers import Detokenizer, Tokenizer

DONE = b"data: [DONE]\n\n"
DEFAULT_MAX_TOKENS = 16

_json = msgspec.json.Encoder()


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
        raise InvalidRequest("the scripted engine has no echo, and one choice a request")
    eos = () if body.ignore_eos else eos_ids
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return EngineRequest(
        id=body.request_id or uuid4().hex,
        prompt=prompt,
        max_tokens=room if body.max_tokens is None else body.max_tokens,
        sampling=Sampling(
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            seed=body.seed,
            stop=stop,
            logprobs=body.logprobs,
        ),
        stop_ids=frozenset((*eos, *(body.stop_token_ids or ()))),
        constraint=_constraint(body.structured_outputs or {}, body.response_format or {}),
        session=body.session_id,
        priority=body.priority,
        cache_salt=body.cache_salt,
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


@dataclass
class Tally:
    """Tokens of one answer."""

    prompt: int
    cached: int = 0
    generated: int = 0

    def usage(self, *, details: bool = True) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.generated,
            "completion_tokens": self.generated,
        }
        if details:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return counts


class Choice(msgspec.Struct):
    """The one choice, or what a chunk adds to it."""

    index: int = 0
    text: str = ""
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Writer:
    """Deltas to choices and bytes, for one answer."""

    def __init__(
        self, body: CompletionRequest, request: EngineRequest, tokenizer: Tokenizer, eos: int | None
    ) -> None:
        self._body = body
        self._request = request
        self._eos = eos
        self._detokenizer = Detokenizer(tokenizer, keep_controls=not body.skip_special_tokens)
        self._offset = 0
        self.tally = Tally(len(request.prompt))

    def choice(self, delta: TokenDelta) -> Choice:
        """What a delta adds."""
        ids, body, tally = delta.ids, self._body, self.tally
        choice = Choice(finish_reason=delta.finish)
        shown = ids
        if delta.finish is not None and ids and ids[-1] in self._request.stop_ids:
            choice.stop_reason = None if ids[-1] == self._eos else ids[-1]
            shown = ids if body.include_stop_str_in_output else ids[:-1]
        pieces = self._detokenizer.feed(shown)
        if delta.finish is not None:
            pieces += self._detokenizer.finish()
        choice.text = "".join([piece.text for piece in pieces])
        if delta.logprobs:
            choice.logprobs = self._logprobs(delta)
        if body.return_token_ids:
            choice.token_ids = ids
            if not tally.generated:
                choice.prompt_token_ids = self._request.prompt.tolist()
        tally.generated += len(ids)
        tally.cached += delta.cached or 0
        return choice

    def _logprobs(self, delta: TokenDelta) -> dict[str, Any]:
        offsets = []
        for one in delta.logprobs:
            offsets.append(self._offset)
            self._offset += len(one.token)
        return {
            "text_offset": offsets,
            "token_logprobs": [one.logprob for one in delta.logprobs],
            "tokens": [one.token for one in delta.logprobs],
            "top_logprobs": [dict(one.top) for one in delta.logprobs],
        }


class Envelope:
    """What is around the choices of one answer. Written once, it is the same for every chunk."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._fields = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._head = b"data: " + _json.encode(self._fields)[:-1] + b',"choices":['

    def chunk(self, choice: Choice, usage: Mapping[str, Any] | None = None) -> bytes:
        """A frame of the stream, with the usage so far where that was asked for."""
        tail = b"]}\n\n" if usage is None else b'],"usage":' + _json.encode(usage) + b"}\n\n"
        return self._head + _json.encode(choice) + tail

    def usage(self, tally: Tally) -> bytes:
        """The frame behind the last choice."""
        return self._head + b'],"usage":' + _json.encode(tally.usage()) + b"}\n\n"

    def whole(self, choice: Choice, tally: Tally) -> bytes:
        """The answer in one piece."""
        return _json.encode({**self._fields, "choices": [choice], "usage": tally.usage()})


def merge(choices: Sequence[Choice]) -> Choice:
    """What all the chunks of an answer add up to."""
    whole = Choice(
        text="".join([choice.text for choice in choices]),
        finish_reason=choices[-1].finish_reason,
        stop_reason=choices[-1].stop_reason,
        prompt_token_ids=choices[0].prompt_token_ids,
    )
    if choices[0].token_ids is not None:
        whole.token_ids = [id for choice in choices for id in choice.token_ids or ()]
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    if parts:
        whole.logprobs = {name: [x for part in parts for x in part[name]] for name in parts[0]}
    return whole
