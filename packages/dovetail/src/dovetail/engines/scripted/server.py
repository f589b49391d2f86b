"""The scripted engine over HTTP, as vLLM serves completions: a raw ASGI application."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from dovetail import __version__
from dovetail.engines.engine import EngineRequest
from dovetail.engines.scripted.engine import ScriptedEngine
from dovetail.engines.scripted.wire import (
    DONE,
    Choice,
    CompletionRequest,
    Envelope,
    Writer,
    engine_request,
    merge,
    prompt_ids,
)
from dovetail_model import ClientError, DovetailError, InvalidRequest, NotFound
from dovetail_tokenizers import Tokenizer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Body = TypeVar("Body")

SESSION_HEADER = b"x-session-id"
MAX_MODEL_LEN = 1 << 20  # where nobody says

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


class _Gone(Exception):
    """The client hung up."""


class ScriptedServer:
    """The ASGI application. `on_death` is called when the script lets the engine die."""

    def __init__(
        self,
        engine: ScriptedEngine,
        model: ServedModel,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._on_death = on_death
        self._created = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[_Call], Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = _Call(scope, receive, send)
        route = self._routes.get((scope["method"], scope["path"]))
        try:
            if route is None:
                raise NotFound("Not Found")
            await route(call)
        except _Gone:
            return
        except DovetailError as error:
            await self._refuse(call, error)

    async def _completions(self, call: "_Call") -> None:
        body = await call.read(CompletionRequest)
        model = self._model
        if body.model is not None and body.model not in model.names:
            raise NotFound(f"The model `{body.model}` does not exist.", param="model")
        prompt = prompt_ids(body, model.tokenizer)
        room = model.max_model_len - len(prompt)
        if room <= 0:
            raise InvalidRequest(
                f"This model's maximum context length is {model.max_model_len} tokens. However, "
                f"your request has {len(prompt)} input tokens.",
                param="input_tokens",
            )
        id = f"cmpl-{body.request_id or uuid4().hex}"
        request = engine_request(body, prompt, id, model.eos_ids, room)
        if request.session is None:
            request = msgspec.structs.replace(request, session=call.header(SESSION_HEADER))
        answer = self._stream if body.stream else self._whole
        await call.unless_gone(answer(call, body, request))
