"""A token engine over HTTP, as vLLM serves completions: a raw ASGI application."""

import hmac
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec

from dovetail.engines.completion_server.hearing import Ear, Stream, Whole
from dovetail.engines.completion_server.load import Load
from dovetail.engines.completion_server.model import ServedModel
from dovetail.engines.completion_server.request import CompletionRequest, engine_request, prompt_ids
from dovetail.engines.completion_server.response import DONE, Envelope, Frames, Writer, merge
from dovetail.engines.engine import EngineRequest, TokenDelta, TokenEngine
from dovetail.net.direct import get_byte_sink
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, Exchange, ClientDisconnected, Message, Receive, Send
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineUnavailable,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthenticated,
)

SESSION_HEADER = b"x-session-id"
VERSION = "0.32.0+dovetail"  # the protocol's, for clients that look before they ask

Bursts = Callable[[EngineRequest], AsyncGenerator[list[TokenDelta]]]
_json = msgspec.json.Encoder()


class TokenizeRequest(msgspec.Struct, frozen=True):
    prompt: str
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Dead(EngineUnavailable):
    """The engine failed and will not come back."""


class CompletionsServer:
    """The ASGI application. With a `key` it answers only requests that carry it.

    `bursts` gives the engine's deltas in lists of those that are due together; without it each one
    goes out by itself, in the very call in which the engine tells it. `on_death` is called when the
    engine turns out to be beyond help.
    """

    def __init__(
        self,
        engine: TokenEngine,
        model: ServedModel,
        *,
        key: str | None = None,
        bursts: Bursts | None = None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._permit = f"Bearer {key}".encode() if key is not None else None
        self._bursts = bursts
        self._on_death = on_death
        self._created = int(time.time())
        self._load = Load()
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
            self._authorize(exchange)
            if route is None:
                raise NotFound("Not Found")
            await route(exchange)
        except ClientDisconnected:
            return
        except DovetailError as error:
            info = _error(error)
            await exchange.respond(_json.encode(info), status=info["error"]["code"])

    def _authorize(self, exchange: Exchange) -> None:
        if self._permit is None:
            return
        shown = (exchange.header(b"authorization") or "").encode("latin-1")
        if not hmac.compare_digest(shown, self._permit):
            raise Unauthenticated("Unauthorized")

    async def _completions(self, exchange: Exchange) -> None:
        body = await exchange.read_json(CompletionRequest)
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
        writer = Writer(body, request, model)
        answer = self._stream if body.stream else self._whole
        await exchange.run_until_disconnect(answer(exchange, request, writer))

    async def _stream(self, exchange: Exchange, request: EngineRequest, writer: Writer) -> None:
        """The answer as it comes. Whatever is due together goes out in one write."""
        frames = Frames(writer, self._envelope())
        await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE)
        stream = Stream(get_byte_sink(exchange), frames)
        try:
            await self._generate(request, writer, stream)
        except _Dead as death:  # it says nothing more: its connections break off
            raise ConnectionAbortedError(death.message) from death
        except DovetailError as error:
            last = b"data: " + _json.encode(_error(error)) + b"\n\n" + DONE
        else:
            last = frames.last()
        await stream.wait()
        await exchange.end(last)

    async def _whole(self, exchange: Exchange, request: EngineRequest, writer: Writer) -> None:
        whole = Whole(writer)
        await self._generate(request, writer, whole)
        await exchange.respond(self._envelope().whole(merge(whole.choices), writer.tally))

    async def _generate(self, request: EngineRequest, writer: Writer, ear: Ear) -> None:
        """Lets the engine speak, and counts."""
        self._load.begin(writer.tally)
        try:
            if self._bursts is None:
                await self._engine.generate(request, ear)
            else:
                await self._play(self._bursts(request), ear)
        except DovetailError as error:
            if (await self._engine.health()).ready:
                raise
            self._on_death()
            raise _Dead(error.message) from error
        finally:
            self._load.end(writer.tally)

    async def _play(self, bursts: AsyncGenerator[list[TokenDelta]], ear: Ear) -> None:
        async with aclosing(bursts):
            async for burst in bursts:
                if not (ear.hear_all(burst) or await ear.wait()):
                    return

    def _envelope(self) -> Envelope:
        return Envelope(f"cmpl-{uuid4().hex}", int(time.time()), self._model.names[0])

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await exchange.read_json(TokenizeRequest)
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(body.prompt)
        spelled = [tokenizer.decode([id]) for id in ids] if body.return_token_strs else None
        told = {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}
        await exchange.respond(_json.encode({**told, "token_strs": spelled}))

    async def _detokenize(self, exchange: Exchange) -> None:
        body = await exchange.read_json(DetokenizeRequest)
        await exchange.respond(_json.encode({"prompt": self._model.tokenizer.decode(body.tokens)}))

    async def _models(self, exchange: Exchange) -> None:
        card = {"object": "model", "created": self._created, "owned_by": "dovetail"}
        rest = {"root": self._model.names[0], "parent": None}
        limit = {"max_model_len": self._model.max_model_len}
        cards = [{"id": name, **card, **rest, **limit} for name in self._model.names]
        await exchange.respond(_json.encode({"object": "list", "data": cards}))

    async def _health(self, exchange: Exchange) -> None:
        ready = (await self._engine.health()).ready
        await exchange.respond(b"", status=200 if ready else 503)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.respond(_json.encode({"version": VERSION}))

    async def _metrics(self, exchange: Exchange) -> None:
        facts = (await self._engine.health()).facts or {}
        text = self._load.text(self._model.names[0], facts)
        await exchange.respond(text, b"text/plain; version=0.0.4")


#: Errors by the names that vLLM has for them, the most special first.
_WORDS: tuple[tuple[type[DovetailError], str, int], ...] = (
    (NotFound, "NotFoundError", 404),
    (Unauthenticated, "AuthenticationError", 401),
    (ClientError, "BadRequestError", 400),
    (EngineUnavailable, "ServiceUnavailableError", 503),
    (Overloaded, "TooManyRequestsError", 429),
)


def _error(error: DovetailError) -> dict[str, Any]:
    """An error as vLLM words it."""
    kind, code = "InternalServerError", 500
    for form, word, status in _WORDS:
        if isinstance(error, form):
            kind, code = word, status
            break
    told = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return {"error": told}
