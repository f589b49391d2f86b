"""Serve a token engine over HTTP with vLLM's completions protocol: a plain ASGI application."""

import asyncio
import hmac
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.completion_server.request import (
    CompletionRequest,
    parse_prompt,
    to_engine_request,
)
from dovetail.engines.completion_server.response import (
    DONE,
    BatchTokenSink,
    ChoiceBuilder,
    CollectingSink,
    ResponseEnvelope,
    StreamEncoder,
    StreamSink,
    UsageCounter,
    merge_choices,
)
from dovetail.engines.engine import EngineRequest, TokenDelta, TokenEngine
from dovetail.net.exchange import (
    EVENT_STREAM_CONTENT_TYPE,
    ClientDisconnected,
    DisconnectGuard,
    Exchange,
    Receive,
    Scope,
    Send,
)
from dovetail.net.response_writer import ResponseWriter
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineUnavailable,
    InvalidEngineResponse,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthenticated,
)


class ServerStats:
    """Counters of requests and tokens."""

    __slots__ = ("_cached", "_finished", "_generated", "_prompt", "_running")

    def __init__(self) -> None:
        self._prompt = self._cached = self._generated = self._running = self._finished = 0

    def request_started(self, counter: UsageCounter) -> None:
        """Count an admitted request."""
        self._running += 1
        self._prompt += counter.prompt

    def request_finished(self, counter: UsageCounter) -> None:
        """Count a request that has ended, successfully or not."""
        self._running -= 1
        self._finished += 1
        self._generated += counter.generated
        self._cached += counter.cached or 0

    def render(self, model: str, facts: Mapping[str, Any]) -> bytes:
        """Render the counters in Prometheus' text format.

        The engine's own facts take precedence.
        """
        values = [
            ("gauge", "num_requests_running", facts.get("running", self._running)),
            ("gauge", "num_requests_waiting", facts.get("waiting", 0)),
            ("gauge", "kv_cache_usage_perc", facts.get("cache_usage", 0)),
            ("counter", "prompt_tokens_total", self._prompt),
            ("counter", "generation_tokens_total", self._generated),
            ("counter", "prefix_cache_queries_total", self._prompt),
            ("counter", "prefix_cache_hits_total", self._cached),
            ("counter", "request_success_total", self._finished),
        ]
        label = f'{{model_name="{model}"}}'
        lines = [f"# TYPE vllm:{n} {kind}\nvllm:{n}{label} {value}\n" for kind, n, value in values]
        return "".join(lines).encode()


SESSION_HEADER = "x-session-id"
PROTOCOL_VERSION = "0.32.0+dovetail"  # the protocol version that is reported to clients

BatchGenerator = Callable[[EngineRequest], AsyncGenerator[list[TokenDelta]]]
_json = msgspec.json.Encoder()


class TokenizeRequest(msgspec.Struct, frozen=True):
    prompt: str
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]


class _EngineDead(EngineUnavailable):
    """The engine has failed and will not recover."""


class CompletionsServer:
    """The ASGI application.

    `api_key`: if set, requests must carry it.
    `stream_batches`: yields the engine's deltas in lists, one per batch of deltas that are due
    together. Without it, each delta is written in the same call in which the engine pushes it.
    `on_engine_dead`: called when the engine has failed permanently.
    """

    def __init__(
        self,
        engine: TokenEngine,
        model: CompletionModel,
        *,
        api_key: str | None = None,
        stream_batches: BatchGenerator | None = None,
        on_engine_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._authorization = f"Bearer {api_key}".encode() if api_key is not None else None
        self._stream_batches = stream_batches
        self._on_engine_dead = on_engine_dead
        self._created = int(time.time())
        self._stats = ServerStats()
        self._routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        route = self._routes.get((exchange.method, exchange.path))
        try:
            self._authorize(exchange)
            if route is None:
                raise NotFound("Not Found")
            await route(exchange)
        except ClientDisconnected:
            return
        except DovetailError as error:
            info = _encode_error(error)
            await exchange.respond(info["error"]["code"], _json.encode(info))

    def _authorize(self, exchange: Exchange) -> None:
        if self._authorization is None:
            return
        sent = exchange.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(sent, self._authorization):
            raise Unauthenticated("Unauthorized")

    async def _completions(self, exchange: Exchange) -> None:
        body = await exchange.read_json(CompletionRequest)
        model = self._model
        if body.model is not None and body.model not in model.names:
            raise NotFound(f"The model `{body.model}` does not exist.", param="model")
        prompt = parse_prompt(body, model.tokenizer)
        room = model.max_model_len - len(prompt)
        if room <= 0:
            raise InvalidRequest(
                f"This model's maximum context length is {model.max_model_len} tokens. "
                f"However, your request has {len(prompt)} input tokens.",
                param="input_tokens",
            )
        request = to_engine_request(body, prompt, model.eos_ids, room)
        if request.session is None:
            session = exchange.headers.get(SESSION_HEADER) or None
            request = msgspec.structs.replace(request, session=session)
        writer = ChoiceBuilder(body, request, model)
        respond = self._stream if body.stream else self._respond
        await respond(exchange, request, writer)

    async def _stream(
        self, exchange: Exchange, request: EngineRequest, writer: ChoiceBuilder
    ) -> None:
        """Stream the response. Deltas that are due together are sent in one write."""
        frames = StreamEncoder(writer, self._envelope())
        async with DisconnectGuard(exchange.receive):
            await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE)
            body = ResponseWriter(exchange)
            try:
                await self._generate(request, writer, StreamSink(body, frames))
                last = frames.encode_end()
            # send no error frame: the connections of a dead engine are aborted
            except _EngineDead as error:
                raise ConnectionAbortedError(error.message) from error
            except DovetailError as error:
                last = b"data: " + _json.encode(_encode_error(error)) + b"\n\n" + DONE
            except asyncio.CancelledError:
                body.discard()
                raise
            await body.drain()
        await exchange.end(last)

    async def _respond(
        self, exchange: Exchange, request: EngineRequest, writer: ChoiceBuilder
    ) -> None:
        collected = CollectingSink(writer)
        async with DisconnectGuard(exchange.receive):
            await self._generate(request, writer, collected)
        choice = merge_choices(collected.choices)
        await exchange.respond(200, self._envelope().encode_response(choice, writer.counter))

    async def _generate(
        self, request: EngineRequest, writer: ChoiceBuilder, sink: BatchTokenSink
    ) -> None:
        """Run the generation and update the counters."""
        self._stats.request_started(writer.counter)
        try:
            if self._stream_batches is None:
                await self._engine.generate(request, sink)
            else:
                await self._push_batches(self._stream_batches(request), sink)
            if not writer.finished:
                raise InvalidEngineResponse("the engine sent no finish reason")
        except DovetailError as error:
            if (await self._engine.health()).ready:
                raise
            self._on_engine_dead()
            raise _EngineDead(error.message) from error
        finally:
            self._stats.request_finished(writer.counter)

    async def _push_batches(
        self, batches: AsyncGenerator[list[TokenDelta]], sink: BatchTokenSink
    ) -> None:
        async with aclosing(batches):
            async for batch in batches:
                if not (sink.push_all(batch) or await sink.drain()):
                    return

    def _envelope(self) -> ResponseEnvelope:
        return ResponseEnvelope(f"cmpl-{uuid4().hex}", int(time.time()), self._model.names[0])

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await exchange.read_json(TokenizeRequest)
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(body.prompt)
        texts = [tokenizer.decode([id]) for id in ids] if body.return_token_strs else None
        fields = {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}
        await exchange.respond(200, _json.encode({**fields, "token_strs": texts}))

    async def _detokenize(self, exchange: Exchange) -> None:
        body = await exchange.read_json(DetokenizeRequest)
        text = self._model.tokenizer.decode(body.tokens)
        await exchange.respond(200, _json.encode({"prompt": text}))

    async def _models(self, exchange: Exchange) -> None:
        card = {"object": "model", "created": self._created, "owned_by": "dovetail"}
        rest = {"root": self._model.names[0], "parent": None}
        limit = {"max_model_len": self._model.max_model_len}
        cards = [{"id": name, **card, **rest, **limit} for name in self._model.names]
        await exchange.respond(200, _json.encode({"object": "list", "data": cards}))

    async def _health(self, exchange: Exchange) -> None:
        ready = (await self._engine.health()).ready
        await exchange.respond(200 if ready else 503, b"")

    async def _version(self, exchange: Exchange) -> None:
        await exchange.respond(200, _json.encode({"version": PROTOCOL_VERSION}))

    async def _metrics(self, exchange: Exchange) -> None:
        facts = (await self._engine.health()).facts or {}
        text = self._stats.render(self._model.names[0], facts)
        await exchange.respond(200, text, "text/plain; version=0.0.4")


#: Errors with vLLM's names for them, most specific first.
_ERROR_TYPES: tuple[tuple[type[DovetailError], str, int], ...] = (
    (NotFound, "NotFoundError", 404),
    (Unauthenticated, "AuthenticationError", 401),
    (ClientError, "BadRequestError", 400),
    (EngineUnavailable, "ServiceUnavailableError", 503),
    (Overloaded, "TooManyRequestsError", 429),
)


def _encode_error(error: DovetailError) -> dict[str, Any]:
    """Encode an error in vLLM's format."""
    kind, code = "InternalServerError", 500
    for error_type, name, status in _ERROR_TYPES:
        if isinstance(error, error_type):
            kind, code = name, status
            break
    body = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return {"error": body}
