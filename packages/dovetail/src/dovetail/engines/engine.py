"""The engine interfaces. Token engines receive token ids and return only token ids.

Rules for an engine:
- `generate` pushes each delta to its sink as it arrives, with one or more ids, and returns after
  the delta with a `finish`. Cancelling it ends the generation within one token.
- The engine calls the sink in the same call that received the tokens: a task switch per token would
  cost more than processing the token. A full sink returns False, and the engine then awaits
  `drain`.
- The token that ended the turn is part of the last delta's ids, if the engine knows it.
- A failure raises an `EngineError` of `dovetail_model`. It must not look like a normal finish.
- `cached` is reported once: with the first delta, or with the last one if it is known only then.
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
    ServerToolKind,
    TokenLogprob,
)

ConstraintSyntax = Literal["gbnf", "ebnf", "lark", "structural_tag", "json_schema"]

#: Sampling parameters that not every engine has.
OptionalSampling = Literal["min_tokens", "ignore_eos", "logit_bias"]


class Constraint(msgspec.Struct, frozen=True):
    """A grammar that constrains the output, in a syntax that the engine supports."""

    syntax: ConstraintSyntax
    text: str


class EngineRequest(msgspec.Struct, frozen=True):
    """One generation. The engine must not modify `prompt`.

    `stop_ids`: token ids that end the turn: those of the model, unless the request ignores them,
    and those of the request.
    `session`: lets the engine reuse the cache of the session's previous request.
    `parent_session`: the session that started this one, such as that of a sub-agent's caller.
    `ends_session`: no other request of the session follows, so nothing needs to be held for it.
    `priority`: requests with a higher value run first, regardless of the engine's own convention.
    `strict_priority`: takes precedence over `priority`.
    `expected_tokens`: the output length that the client predicts.
    `adapter`: the name of the LoRA adapter that is applied; None for the base model.
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
    ends_session: bool = False
    adapter: str | None = None
    parent_session: str | None = None
    strict_priority: int = 0


class TokenDelta(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Newly generated tokens. The order of the fields is part of the step protocol.

    `logprobs`: one entry per id, if logprobs were requested.
    `cached`: the number of prompt tokens that were found in the prefix cache.
    `exact`: False if the engine lost track of the ids that it generated. The text is still correct,
    but the turn cannot be replayed token by token.
    """

    ids: "list[int]"
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached: int | None = None
    exact: bool = True


class TokenSink(Protocol):
    """Receives the tokens of an engine."""

    def push(self, delta: TokenDelta) -> bool:
        """Accept a delta. Return False if the caller must await `drain` before the next delta."""

    async def drain(self) -> bool:
        """Wait until the sink has room for more deltas. Return False to end the generation."""


@dataclass(frozen=True)
class EngineHealth:
    """The health of an engine: whether it accepts requests, and the facts that it reports."""

    ready: bool
    detail: str = ""
    facts: Mapping[str, Any] | None = None


@runtime_checkable
class FactReporter(Protocol):
    """An engine that reports facts continuously, so that metrics need no health check."""

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        """The last report: `running`, `waiting` and `cache_usage`, as far as it has them."""


@runtime_checkable
class RetainingEngine(Protocol):
    """An engine that keeps the prefix of a session for a given time, if there is room."""

    def retain(self, request: str, seconds: float) -> None:
        """Prefer to keep the cached prompt and output of a finished request for some time only."""


@dataclass(frozen=True)
class EngineCapabilities:
    """The features that an engine supports.

    `constraints`: the constraint syntaxes that the engine enforces, best first.
    `context_length`: None if it is not known.
    `local`: the engine runs in a child process of this process. If that process dies, stopping and
    starting the engine restarts it.
    `supervised_elsewhere`: the engine runs in a process that another process of this server
    restarts.
    `images`: the engine accepts images.
    `constrains_after_reasoning`: constraints apply only after the reasoning span, instead of from
    the first token on.
    `sampling`: the optional sampling parameters that the engine applies. A request with another one
    is rejected before it reaches the engine.
    `hosted_tools`: the server tools that an upstream runs for clients of other APIs. Declarations
    of its own API are passed to it in any case.
    `api`: the API of an upstream, `chat` or `responses`; None if it is not known yet.
    `kv_tokens`: the capacity of the KV cache in tokens; None if it is not known.
    """

    constraints: tuple[ConstraintSyntax, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    local: bool = False
    supervised_elsewhere: bool = False
    constrains_after_reasoning: bool = False
    images: bool = False
    sampling: frozenset[OptionalSampling] = frozenset()
    hosted_tools: frozenset[ServerToolKind] = frozenset()
    api: str | None = None
    kv_tokens: int | None = None


def check_prompt_length(request: EngineRequest, context_length: int | None) -> None:
    """Raise `ContextOverflow` if the prompt leaves no room for a single output token."""
    length = len(request.prompt)
    if context_length is not None and length + 1 > context_length:
        raise ContextOverflow(f"prompt is too long: {length} tokens > {context_length - 1} maximum")


async def check_health(
    engine: "TokenEngine | UpstreamEngine", timeout_seconds: float
) -> EngineHealth:
    """Return the health of an engine, or "not ready" if the check fails or times out."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await engine.health()
    except TimeoutError:
        return EngineHealth(False, "no response")
    except Exception as error:
        return EngineHealth(False, type(error).__name__)


@runtime_checkable
class TokenEngine(Protocol):
    """An engine that takes token ids and returns token ids."""

    name: str

    @property
    def capabilities(self) -> EngineCapabilities: ...

    async def start(self) -> None:
        """Load weights or connect. Raise an error with the reason if the engine cannot start."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None: ...

    async def health(self) -> EngineHealth: ...

    async def stop(self) -> None:
        """Release all resources and cancel running generations."""


class UpstreamEngine(Protocol):
    """An upstream server that renders prompts and parses output itself.

    `stream` yields batches of events as they arrive, with a `Usage` before the final `Finish`. Its
    events are not parsed again. A failure raises an `EngineError` or a `ClientError`, before or
    after the first batch.
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
    """A model of a remote server.

    `name`: the name to use in requests.
    `names`: all names that the server accepts for the model.
    `root`: where the server loaded it from: a folder on the server's machine, or a hub id.
    `version`: the version of the server, if it reports one.
    `adapters`: models that are based on this one and have the same tokenizer.
    """

    name: str
    names: tuple[str, ...] = ()
    root: str | None = None
    context_length: int | None = None
    version: str = ""
    adapters: tuple[str, ...] = ()


_ENGINE_URL = re.compile(r"\b(?:https?|unix|tcp|tls)://[^\s,;)\'\"]+")


def to_public_error(error: DovetailError) -> DovetailError:
    """Return the error without engine addresses, which belong only in the server's logs."""
    if not isinstance(error, EngineError):
        return error
    message = _ENGINE_URL.sub("the engine", error.message)
    safe = type(error)(message, param=error.param, retry_after=error.retry_after)
    safe.reason = error.reason
    return safe
