"""Decode the body of `POST /v1/completions`.

A raw prompt is not a turn, and no chat template is applied. It is stored in the request's echo,
where `raw_prompt` reads it.
"""

import msgspec

from dovetail_model import InvalidRequest, Request, Unsupported
from dovetail_protocols.chat.decode import decode_output, include_usage, require_model, user_id
from dovetail_protocols.chat.sampling import decode_sampling, non_empty_text
from dovetail_protocols.codec import Headers
from dovetail_protocols.completions.fields import COMPLETION_FIELDS
from dovetail_protocols.completions.wire import CompletionRequest, Prompt
from dovetail_protocols.engine_fields import apply_engine_fields
from dovetail_protocols.hints import read_nvext
from dovetail_protocols.identity import read_identity
from dovetail_protocols.request_body import RequestBody, convert

RawPrompt = str | tuple[int, ...]


class CompletionEcho(msgspec.Struct, frozen=True):
    """The prompt, and what the encoder needs to know about the request."""

    prompt: RawPrompt
    repeat: bool = False
    include_usage: bool = False


def decode(body: bytes, headers: Headers) -> Request:
    """Decode a request without turns. Its prompt is in the echo."""
    fields = RequestBody(body).fields
    unused = COMPLETION_FIELDS.check(fields)
    wire = convert(fields, CompletionRequest)
    nvext = read_nvext(wire.nvext, headers)
    prompt = _prompt(wire.prompt)
    _reject_unsupported(wire, prompt)
    sampling = decode_sampling(
        wire, max_tokens=wire.max_tokens, logprobs=wire.logprobs, param="max_tokens"
    )
    output = decode_output(wire.response_format or {})
    sampling, output = apply_engine_fields(fields, sampling, output)
    return Request(
        model=require_model(wire),
        sampling=sampling,
        output=output,
        identity=read_identity(
            headers, session=non_empty_text(wire.prompt_cache_key), user=user_id(wire)
        ),
        hints=nvext.hints,
        stream=bool(wire.stream),
        ignored=unused,
        echo=CompletionEcho(prompt, repeat=bool(wire.echo), include_usage=include_usage(wire)),
    )


def raw_prompt(request: Request) -> RawPrompt:
    """Return the prompt as the client sent it: text or token ids."""
    if not isinstance(request.echo, CompletionEcho):
        raise TypeError("only text completion requests have a raw prompt")
    return request.echo.prompt


def _prompt(prompt: Prompt) -> RawPrompt:
    """Decode one prompt, given directly or in a list. Several prompts are not supported."""
    if isinstance(prompt, str):
        return prompt
    items = prompt or [""]
    ids = [item for item in items if isinstance(item, int)]
    if len(ids) == len(items):
        return _ids(ids, "prompt")
    if len(items) > 1:
        if ids:
            raise InvalidRequest("prompt: must not mix texts and token ids", param="prompt")
        raise Unsupported("prompt: only one prompt per request is supported", param="prompt")
    only = items[0]
    return _ids(only, "prompt[0]") if isinstance(only, list) else str(only)


def _ids(ids: list[int], path: str) -> tuple[int, ...]:
    for at, id in enumerate(ids):
        if id < 0:
            where = f"{path}[{at}]"
            raise InvalidRequest(f"{where}: token ids must be >= 0, got {id}", param=where)
    return tuple(ids)


def _reject_unsupported(wire: CompletionRequest, prompt: RawPrompt) -> None:
    """Reject unsupported fields that would change the response, instead of ignoring them."""
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise Unsupported("best_of: must be equal to `n`", param="best_of")
    if wire.echo and wire.logprobs is not None:
        raise Unsupported("logprobs: cannot be combined with `echo`", param="logprobs")
    if wire.echo and not isinstance(prompt, str):
        raise Unsupported("echo: is not supported with token ids", param="echo")
