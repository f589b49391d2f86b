"""The scripted engine over HTTP, as vLLM serves completions: a raw ASGI application."""

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail.engines.scripted.engine import ScriptedEngine
from dovetail.engines.scripted.exchange import EVENTS, Exchange, Gone, Message, Receive, Send
from dovetail.engines.scripted.wire import (
    DONE,
    CompletionRequest,
    Envelope,
    Writer,
    engine_request,
    merge,
    prompt_ids,
)
from dovetail_model import ClientError, DovetailError, EngineUnavailable, InvalidRequest, NotFound
from dovetail_tokenizers import Tokenizer

SESSION_HEADER = b"x-session-id"
MAX_MODEL_LEN = 1 << 20  # tokens, where nobody says
VERSION = "0.32.0+scripted"  # the protocol's, for clients that look before they ask

_json = msgspec.json.Encoder()


@dataclass(frozen=True)
class ServedModel:
    """The model that the server pretends to have. `eos_ids` end a turn, the usual one first."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...] = ()
    max_model_len: int = MAX_MODEL_LEN


class TokenizeRequest(msgspec.Struct, frozen=True):
    prompt: str
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]


class ScriptedServer:
    """The ASGI application. `on_death` is called once the script has let the engine die."""

    def __init__(
        self,
        engine: ScriptedEngine,
        model: ServedModel,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._on_death = on_death
        self._created = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        route = self._routes.get((scope["method"], scope["path"]))
        try:
            if route is None:
                raise NotFound("Not Found")
            await route(exchange)
        except Gone:
            return
        except DovetailError as error:
            info = _error(error)
            await exchange.answer(_json.encode(info), status=info["error"]["code"])

    async def _completions(self, exchange: Exchange) -> None:
        body = await exchange.read(CompletionRequest)
        model = self._model
        if body.model is not None and body.model not in model.names:
            raise NotFound(f"The model `{body.model}` does not exist.", param="model")
        prompt = prompt_ids(body, model.tokenizer)
        room = model.max_model_len - len(prompt)
        if room <= 0:
            raise InvalidRequest(
                f"This model's maximum context length is {model.max_model_len} tokens. "
                f"However, your request has {len(prompt)} input tokens.",
                param="input_tokens",
            )
        request = engine_request(body, prompt, model.eos_ids, room)
        if request.session is None:
            request = msgspec.structs.replace(request, session=exchange.header(SESSION_HEADER))
        answer = self._stream if body.stream else self._whole
        await exchange.unless_gone(answer(exchange, body, request))

    async def _stream(
        self, exchange: Exchange, body: CompletionRequest, request: EngineRequest
    ) -> None:
        """The answer as it comes. Whatever is due together goes out in one write."""
        options = body.stream_options
        continuous = options is not None and options.continuous_usage_stats
        envelope, writer = self._envelope(), self._writer(body, request)
        await exchange.begin(200, EVENTS)
        try:
            async with aclosing(self._engine.bursts(request)) as bursts:
                async for burst in bursts:
                    frames = []
                    for delta in burst:
                        choice = writer.choice(delta)
                        usage = writer.tally.usage(details=False) if continuous else None
                        frames.append(envelope.chunk(choice, usage))
                    await exchange.more(b"".join(frames))
        except DovetailError as error:
            await self._die_if_dead()
            await exchange.more(b"data: " + _json.encode(_error(error)) + b"\n\n")
        else:
            if options is not None and options.include_usage:
                await exchange.more(envelope.usage(writer.tally))
        await exchange.end(DONE)

    async def _whole(
        self, exchange: Exchange, body: CompletionRequest, request: EngineRequest
    ) -> None:
        writer = self._writer(body, request)
        try:
            async with aclosing(self._engine.generate(request)) as deltas:
                choices = [writer.choice(delta) async for delta in deltas]
        except EngineUnavailable:
            await self._die_if_dead()
            raise
        await exchange.answer(self._envelope().whole(merge(choices), writer.tally))

    async def _die_if_dead(self) -> None:
        """A dead engine says nothing more: its connections break off."""
        if not (await self._engine.health()).ready:
            self._on_death()
            raise ConnectionAbortedError("the script let the engine die")

    def _envelope(self) -> Envelope:
        return Envelope(f"cmpl-{uuid4().hex}", int(time.time()), self._model.names[0])

    def _writer(self, body: CompletionRequest, request: EngineRequest) -> Writer:
        eos = next(iter(self._model.eos_ids), None)
        return Writer(body, request, self._model.tokenizer, eos)

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await exchange.read(TokenizeRequest)
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(body.prompt)
        spelled = [tokenizer.decode([id]) for id in ids] if body.return_token_strs else None
        told = {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}
        await exchange.answer(_json.encode({**told, "token_strs": spelled}))

    async def _detokenize(self, exchange: Exchange) -> None:
        body = await exchange.read(DetokenizeRequest)
        await exchange.answer(_json.encode({"prompt": self._model.tokenizer.decode(body.tokens)}))

    async def _models(self, exchange: Exchange) -> None:
        card = {"object": "model", "created": self._created, "owned_by": "dovetail"}
        rest = {"root": self._model.names[0], "parent": None}
        limit = {"max_model_len": self._model.max_model_len}
        cards = [{"id": name, **card, **rest, **limit} for name in self._model.names]
        await exchange.answer(_json.encode({"object": "list", "data": cards}))

    async def _health(self, exchange: Exchange) -> None:
        ready = (await self._engine.health()).ready
        await exchange.answer(b"", status=200 if ready else 503)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer(_json.encode({"version": VERSION}))

    async def _metrics(self, exchange: Exchange) -> None:
        counts = self._engine.counts
        values = [
            ("gauge", "num_requests_running", counts.running),
            ("gauge", "num_requests_waiting", 0),
            ("gauge", "kv_cache_usage_perc", self._engine.cache.usage),
            ("counter", "prompt_tokens_total", counts.prompt),
            ("counter", "generation_tokens_total", counts.generated),
            ("counter", "prefix_cache_queries_total", counts.prompt),
            ("counter", "prefix_cache_hits_total", counts.cached),
            ("counter", "request_success_total", counts.finished),
        ]
        label = f'{{model_name="{self._model.names[0]}"}}'
        lines = [f"# TYPE vllm:{n} {kind}\nvllm:{n}{label} {value}\n" for kind, n, value in values]
        await exchange.answer("".join(lines).encode(), b"text/plain; version=0.0.4")


def _error(error: DovetailError) -> dict[str, Any]:
    """An error as vLLM words it."""
    kind, code = "InternalServerError", 500
    if isinstance(error, NotFound):
        kind, code = "NotFoundError", 404
    elif isinstance(error, ClientError):
        kind, code = "BadRequestError", 400
    elif isinstance(error, EngineUnavailable):
        kind, code = "ServiceUnavailableError", 503
    told = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return {"error": told}
