"""The engine interfaces. Token engines take token ids and return token ids, nothing else.

Rules for an engine:
- `generate` pushes deltas to its sink as they arrive, one or many ids each, and returns after the
  delta with a `finish`. Cancelling it ends the generation within a token.
- A sink is called in the very call that received the tokens: a task switch for each of them would
  cost more than their processing. A sink without room returns False, and is waited for (`drain`).
- The token that ended the turn is part of the last delta's ids, if the engine knows it.
- A failure is an `EngineError` of `dovetail_model`, never a clean end.
- `cached` is reported once, with the first delta, or with the last if the engine learns it late.
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
    """A grammar for the output, in a syntax that the engine supports."""

    syntax: ConstraintSyntax
    text: str


class EngineRequest(msgspec.Struct, frozen=True):
    """One generation. The engine must not change `prompt`.

    `stop_ids` end the turn. `session` may be used to return to the same cache. Requests with a
    higher `priority` run sooner, whatever an engine's own numbers mean. `expected_tokens` is the
    output length that the client predicts.
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
    """More tokens. `logprobs` has one entry for each id, where they were requested.

    `exact` is False where the engine lost track of the ids it generated: the text is right, the
    turn cannot be replayed token for token.
    """

    ids: "list[int]"
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached: int | None = None
    exact: bool = True


class TokenSink(Protocol):
    """The receiver of an engine's tokens."""

    def push(self, delta: TokenDelta) -> bool:
        """Take a delta. False: await `drain` before the next one."""

    async def drain(self) -> bool:
        """Return when there is room for more: False where no more is wanted."""


@dataclass(frozen=True)
class EngineHealth:
    """Whether an engine accepts requests, and the facts it reports."""

    ready: bool
    detail: str = ""
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class EngineCapabilities:
    """What an engine supports. `context_length` is None where it is not known.

    `constraints` are the syntaxes that it enforces, the best first: from the first token on, or,
    with `constrains_after_reasoning`, only after the reasoning span. A `local` engine runs in a
    child process of this process: when that dies, stopping and starting the engine restarts it.
    An engine that is `supervised_elsewhere` runs in a process that another process of this
    server restarts.
    """

    constraints: tuple[ConstraintSyntax, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    local: bool = False
    supervised_elsewhere: bool = False
    constrains_after_reasoning: bool = False


def check_prompt_length(request: EngineRequest, context_length: int | None) -> None:
    """Raise `ContextOverflow` where a prompt leaves no room for a single token."""
    length = len(request.prompt)
    if context_length is not None and length + 1 > context_length:
        raise ContextOverflow(f"prompt is too long: {length} tokens > {context_length - 1} maximum")


async def check_health(
    engine: "TokenEngine | UpstreamEngine", timeout_seconds: float
) -> EngineHealth:
    """The health of an engine. One whose check fails or times out is not ready."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await engine.health()
    except TimeoutError:
        return EngineHealth(False, "no answer")
    except Exception as error:
        return EngineHealth(False, type(error).__name__)


@runtime_checkable
class TokenEngine(Protocol):
    """An engine that takes token ids and returns token ids."""

    name: str

    @property
    def capabilities(self) -> EngineCapabilities: ...

    async def start(self) -> None:
        """Make the engine ready: load weights, connect. Raises with the reason if it cannot."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None: ...

    async def health(self) -> EngineHealth: ...

    async def stop(self) -> None:
        """Release all resources. Running generations are cancelled."""


class UpstreamEngine(Protocol):
    """An upstream that renders and parses by itself: its events are not parsed again.

    `stream` yields batches of events as they arrive, a `Usage` before the `Finish` that ends them.
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
    """A model of a remote server. Requests name it `name`; it was loaded from `root`: a folder on
    the server's machine, or an id of the hub.

    `names` are all names that the server accepts. `adapters` are models based on it, with the same
    tokenizer. `version` is the server's own, where it is reported.
    """

    name: str
    names: tuple[str, ...] = ()
    root: str | None = None
    context_length: int | None = None
    version: str = ""
    adapters: tuple[str, ...] = ()


_ENGINE_URL = re.compile(r"\b(?:https?|unix)://[^\s,;)\'\"]+")


def to_public_error(error: DovetailError) -> DovetailError:
    """The error without the addresses of engines, which are only logged, with the replica."""
    if not isinstance(error, EngineError):
        return error
    message = _ENGINE_URL.sub("the engine", error.message)
    safe = type(error)(message, param=error.param, retry_after=error.retry_after)
    safe.reason = error.reason
    return safe
