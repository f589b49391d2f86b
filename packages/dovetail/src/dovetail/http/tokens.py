"""Token counts, tokenization and detokenization, in the formats of Anthropic and vLLM."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dovetail.http.body import read_body, run_decoder
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.pipeline.concurrency import run_in_thread
from dovetail.pipeline.execution import count_tokens, require_tokenizer
from dovetail.pipeline.registry import ModelEntry, ModelRegistry
from dovetail_model import Identity, InvalidRequest, Request, Unsupported
from dovetail_protocols import (
    CHAT,
    MAX_JSON_DEPTH,
    MESSAGES,
    check_request,
    decode_count,
    encode_count,
)

T = TypeVar("T")


class TokenizeBody(msgspec.Struct):
    """A text or a conversation in the format of Chat Completions."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class TokensEndpoints:
    """Endpoints for token counts and tokenization. None of them sends requests to an engine."""

    def __init__(self, service: ModelRegistry, options: HttpOptions) -> None:
        self._service = service
        self._options = options

    async def count_tokens(self, exchange: ApiExchange) -> None:
        """Count input tokens for Anthropic's API, exactly: the request is rendered as usual."""
        body, headers, memory = (
            await self._read_body(exchange),
            exchange.headers,
            self._service.memory,
        )
        request = await run_decoder(body, lambda: decode_count(body, headers, memory))
        check_request(
            request, self._options.request_limits, MESSAGES.history_field, body_bytes=len(body)
        )
        entry = self._service.find(request.model)
        request = self._service.resolve_tools(request)
        count = await count_tokens(entry, _with_tenant(request, exchange.tenant))
        await exchange.respond(200, encode_count(count.tokens, count.original))

    async def tokenize(self, exchange: ApiExchange) -> None:
        body = await self._read_body(exchange)
        request = await run_decoder(body, lambda: _decode_json(body, TokenizeBody))
        entry = self._find_model(request.model)
        tokenizer = require_tokenizer(entry).model.tokenizer
        ids = await self._encode(request, body, exchange, entry)
        response: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": entry.context_length,
            "tokens": ids,
        }
        if request.return_token_strs:
            decode = tokenizer.decode
            response["token_strs"] = await run_in_thread(
                len(ids), lambda: [decode([id]) for id in ids]
            )
        await exchange.respond(200, msgspec.json.encode(response))

    async def detokenize(self, exchange: ApiExchange) -> None:
        body = await self._read_body(exchange)
        request = await run_decoder(body, lambda: _decode_json(body, DetokenizeBody))
        tokenizer = require_tokenizer(self._find_model(request.model)).model.tokenizer
        for id in (min(request.tokens, default=0), max(request.tokens, default=0)):
            if not 0 <= id < tokenizer.size:
                raise InvalidRequest(
                    f"`tokens` must contain ids between 0 and {tokenizer.size - 1}, got {id}",
                    param="tokens",
                )
        text = await run_in_thread(len(request.tokens), lambda: tokenizer.decode(request.tokens))
        await exchange.respond(200, msgspec.json.encode({"prompt": text}))

    async def _encode(
        self, request: TokenizeBody, body: bytes, exchange: ApiExchange, entry: ModelEntry
    ) -> list[int]:
        source = require_tokenizer(entry)
        if request.messages is None:
            if request.prompt is None:
                raise InvalidRequest("`prompt` or `messages` is required", param="prompt")
            text, encode = request.prompt, source.model.tokenizer.encode
            return await run_in_thread(len(text), lambda: encode(text))
        if request.add_generation_prompt is False:
            raise Unsupported(
                "`add_generation_prompt` must be true: prompts always end with a generation prompt",
                param="add_generation_prompt",
            )
        chat_request = await run_decoder(
            body, lambda: _decode_chat(body, entry.name, exchange.headers)
        )
        check_request(
            chat_request, self._options.request_limits, CHAT.history_field, body_bytes=len(body)
        )
        chat_request.client.reject_unsupported()
        # A separate session: the request must not affect the conversation that it may belong to.
        chat_request = msgspec.structs.replace(chat_request, identity=Identity(exchange.tenant))
        prepared = await source.preparer.prepare(chat_request)
        return prepared.prompt.ids.tolist()

    def _find_model(self, name: str | None) -> ModelEntry:
        """Return the model with this name, or the first model if there is no name."""
        return self._service.entries[0] if name is None else self._service.find(name)

    async def _read_body(self, exchange: ApiExchange) -> bytes:
        options = self._options
        return await read_body(
            exchange, options.max_body_bytes, options.body_timeout, options.request_limits
        )


def _with_tenant(request: Request, tenant: str) -> Request:
    identity = msgspec.structs.replace(request.identity, tenant=tenant)
    return msgspec.structs.replace(request, identity=identity)


def _decode_chat(body: bytes, model: str, headers: Mapping[str, str]) -> Request:
    """Decode a body as one of Chat Completions with this model."""
    fields = {**_decode_json(body, dict[str, msgspec.Raw]), "model": model}
    return CHAT.decode(msgspec.json.encode(fields), headers)


def _decode_json(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        message = f"The request body must not be nested more than {MAX_JSON_DEPTH} levels deep."
        raise InvalidRequest(message) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Invalid request body: {error}") from error
