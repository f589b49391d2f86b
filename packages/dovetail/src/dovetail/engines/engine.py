"""The seam to what generates. Token engines take ids and give ids; that is all they are asked.

Rules for an engine:
- `generate` tells its listener the deltas as they come, one or many ids each, and returns after the
  one with a `finish`. Cancelling it ends the generation within a token.
- A listener is spoken to in the very call that brought the tokens: a switch of tasks for each of
  them would cost more than all that is done with it. One that has no room says so, and is waited
  for.
- The token that ended the turn is part of the last delta's ids, if the engine knows it.
- A failure is an `EngineError` of `dovetail_model`, never a clean end.
- `cached` is told once, with the first delta, or with the last if the engine learns it late.
"""

import asyncio
import re
from array import array
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    Event,
    Request,
    Sampling,
    TokenLogprob,
)

ConstraintSyntax = Literal["gbnf", "ebnf", "lark", "structural_tag", "json_schema"]


class Constraint(msgspec.Struct, frozen=True):
    """What the output must look like, in a notation that the engine understands."""

    syntax: ConstraintSyntax
    text: str


class EngineRequest(msgspec.Struct, frozen=True):
    """One generation. `prompt` must not be changed by the engine.

    `stop_ids` end the turn. `session` may be used to come back to the same cache. The higher the
    `priority`, the sooner it should run, whatever an engine's own numbers mean. `expected_tokens`
    is what the client guesses the answer's length to be.
    """

    id: str
    prompt: "array[int]"
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    session: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    expected_tokens: int | None = None


class TokenDelta(msgspec.Struct, frozen=True, gc=False):
    """More tokens. `logprobs` has one for each id, where they were asked for.

    `exact` is False where the engine lost track of the ids it generated: the text is right, the
    turn cannot be replayed token for token.
    """

    ids: "list[int]"
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached: int | None = None
    exact: bool = True


class TokenSink(Protocol):
    """Who hears an answer."""

    def push(self, delta: TokenDelta) -> bool:
        """Takes a delta. False: `wait` before the next one."""

    async def drain(self) -> bool:
        """Returns when there is room for more: False where no more is wanted."""


@dataclass(frozen=True)
class EngineHealth:
    """Whether an engine can take requests, and what it says about itself."""

    ready: bool
    detail: str = ""
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class EngineCapabilities:
    """What an engine can do. `context_length` is None where it does not say.

    `constraints` are the notations that it enforces, the best first: from the first token on, or
    only `behind_thought`. `local` is an engine that runs in a process of ours: when that dies,
    stopping and starting it brings it back. One that is `beside` runs in a process that somebody
    else of this server brings back.
    """

    constraints: tuple[ConstraintSyntax, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    local: bool = False
    supervised_elsewhere: bool = False
    constrains_after_reasoning: bool = False


def check_prompt_length(request: EngineRequest, context_length: int | None) -> None:
    """Raises where a prompt leaves no room for a single token."""
    length = len(request.prompt)
    if context_length is not None and length + 1 > context_length:
        raise ContextOverflow(f"prompt is too long: {length} tokens > {context_length - 1} maximum")


async def check_health(
    engine: "TokenEngine | UpstreamEngine", timeout_seconds: float
) -> EngineHealth:
    """How an engine is. One that fails to answer is not ready, whatever the reason."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await engine.health()
    except TimeoutError:
        return EngineHealth(False, "no answer")
    except Exception as error:
        return EngineHealth(False, type(error).__name__)


@runtime_checkable
class TokenEngine(Protocol):
    """Ids in, ids out."""

    name: str

    @property
    def capabilities(self) -> EngineCapabilities: ...

    async def start(self) -> None:
        """Makes it ready: loads weights, connects. Raises with a clear reason if it cannot."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None: ...

    async def health(self) -> EngineHealth: ...

    async def stop(self) -> None:
        """Lets go of everything. Generations that still run are cancelled."""


class UpstreamEngine(Protocol):
    """An upstream that renders and parses by itself: its events are trusted, never parsed again.

    `answer` gives batches of events as they come, a `Usage` before the `Finish` that ends them.
    It raises an `EngineError` or `ClientError` where it fails, before or after the first batch.
    """

    name: str

    @property
    def capabilities(self) -> EngineCapabilities: ...

    async def start(self) -> None: ...

    def stream(self, request: Request) -> AsyncGenerator[list[Event]]: ...

    async def health(self) -> EngineHealth: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class RemoteModel:
    """A model of a server. Requests name it `name`; it was loaded from `root`: a folder on the
    server's machine, or an id of the hub.

    `names` are all names that the server answers to. `adapters` are models of its own on top of it,
    with the same tokenizer. `version` is the server's own, where it tells.
    """

    name: str
    names: tuple[str, ...] = ()
    root: str | None = None
    context_length: int | None = None
    version: str = ""
    adapters: tuple[str, ...] = ()


_ENGINE_URL = re.compile(r"\b(?:https?|unix)://[^\s,;)\'\"]+")


def to_public_error(error: DovetailError) -> DovetailError:
    """The error without addresses of engines. They stand in the log, with the replica."""
    if not isinstance(error, EngineError):
        return error
    message = _ENGINE_URL.sub("the engine", error.message)
    safe = type(error)(message, param=error.param, retry_after=error.retry_after)
    safe.reason = error.reason
    return safe
