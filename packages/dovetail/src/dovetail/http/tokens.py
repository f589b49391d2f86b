"""Counting, and text to ids and back, in the forms that users of vLLM know."""

from typing import Any, TypeVar

import msgspec

from dovetail.http.body import read_body
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.pipeline.concurrency import run_in_thread
from dovetail.pipeline.execution import count_tokens, require_token_model
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail_model import Identity, InvalidRequest, Request, Unsupported
from dovetail_protocols import CHAT, decode_count, encode_count

T = TypeVar("T")


class TokenizeBody(msgspec.Struct):
    """A text, or a conversation as Chat Completions have it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class TokensEndpoints:
    """The endpoints about tokens. None of them reaches an engine."""

    def __init__(self, service: ModelRegistry, options: HttpOptions) -> None:
        self._service = service
        self._options = options

    async def count_tokens(self, exchange: ApiExchange) -> None:
        """Anthropic's count: exact, by the same rendering as the real request."""
        request = decode_count(
            await self._read_body(exchange), exchange.headers, self._service.memory
        )
        served = self._service.find(request.model)
        tokens = await count_tokens(served, _with_tenant(request, exchange.tenant))
        await exchange.respond(200, encode_count(tokens))

    async def tokenize(self, exchange: ApiExchange) -> None:
        body = await self._read_body(exchange)
        asked = _decode_json(body, TokenizeBody)
        served = self._find_model(asked.model)
        ids = await self._encode(asked, body, exchange, served)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": served.context_length,
            "tokens": ids,
        }
        if asked.return_token_strs:
            decode = served.model.tokenizer.decode
            answer["token_strs"] = await run_in_thread(
                len(ids), lambda: [decode([id]) for id in ids]
            )
        await exchange.respond(200, msgspec.json.encode(answer))

    async def detokenize(self, exchange: ApiExchange) -> None:
        asked = _decode_json(await self._read_body(exchange), DetokenizeBody)
        tokenizer = self._find_model(asked.model).model.tokenizer
        for id in (min(asked.tokens, default=0), max(asked.tokens, default=0)):
            if not 0 <= id < tokenizer.size:
                raise InvalidRequest(f"tokens: the model has no token {id}", param="tokens")
        text = await run_in_thread(len(asked.tokens), lambda: tokenizer.decode(asked.tokens))
        await exchange.respond(200, msgspec.json.encode({"prompt": text}))

    async def _encode(
        self, asked: TokenizeBody, body: bytes, exchange: ApiExchange, served: TokenModel
    ) -> list[int]:
        if asked.messages is None:
            if asked.prompt is None:
                raise InvalidRequest("prompt: Field required, or messages", param="prompt")
            text, encode = asked.prompt, served.model.tokenizer.encode
            return await run_in_thread(len(text), lambda: encode(text))
        if asked.add_generation_prompt is False:
            raise Unsupported(
                "add_generation_prompt: a prompt always asks for an answer here",
                param="add_generation_prompt",
            )
        fields = {**msgspec.json.decode(body), "model": served.name}
        request = CHAT.decode(msgspec.json.encode(fields), exchange.headers)
        # A session of its own: the conversation that it may belong to must not notice.
        request = msgspec.structs.replace(request, identity=Identity(exchange.tenant))
        prepared = await served.preparer.prepare(request)
        return prepared.prompt.ids.tolist()

    def _find_model(self, name: str | None) -> TokenModel:
        """The model of a name. Where none is named, the first."""
        found = self._service.entries[0] if name is None else self._service.find(name)
        return require_token_model(found)

    async def _read_body(self, exchange: ApiExchange) -> bytes:
        options = self._options
        return await read_body(exchange, options.max_body_bytes, options.body_timeout)


def _with_tenant(request: Request, tenant: str) -> Request:
    identity = msgspec.structs.replace(request.identity, tenant=tenant)
    return msgspec.structs.replace(request, identity=identity)


def _decode_json(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The request body cannot be read: {error}") from error
