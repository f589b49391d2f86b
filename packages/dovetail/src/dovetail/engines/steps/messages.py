"""The messages of the step protocol, encoded as MessagePack.

The client sends a `Hello`; the engine replies with a `Welcome` or a `Rejection`. After that, the
client sends `Generate`, `Abort`, `Retain` and `HealthCheck` messages, and the engine sends one
`Step` per engine step and a `HealthReport` per check. The client assigns the numbers of streams and
never reuses them within a connection.
"""

import hmac
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.engines.engine import (
    Constraint,
    ConstraintSyntax,
    EngineCapabilities,
    EngineRequest,
    OptionalSampling,
    TokenDelta,
)
from dovetail_model import DovetailError, Failure, Sampling, error_from_failure

#: Raised with every change that an older peer would misinterpret.
PROTOCOL_VERSION = 1
TOKEN_ID_TYPECODE = "I"


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a client: its protocol version and the key of the engine."""

    version: int
    key: str = ""


class EngineDescription(msgspec.Struct, frozen=True):
    """An engine's name, model and capabilities, as known when the model is loaded.

    `model`: the folder or hub id from which the model was loaded.
    `adapters`: the names of the LoRA adapters.
    `facts`: reported with the engine's health.
    `kv_tokens`: the capacity of the KV cache.
    `retention`: the engine accepts `Retain`.
    """

    name: str
    model: str = ""
    context_length: int | None = None
    constraints: tuple[ConstraintSyntax, ...] = ()
    constrains_after_reasoning: bool = False
    sampling: tuple[OptionalSampling, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    adapters: tuple[str, ...] = ()
    facts: dict[str, Any] = {}
    kv_tokens: int | None = None
    retention: bool = False

    def to_capabilities(
        self, *, local: bool = False, supervised_elsewhere: bool = False
    ) -> EngineCapabilities:
        """Return the capabilities. The flags state which process restarts the engine."""
        return EngineCapabilities(
            constraints=self.constraints,
            constrains_after_reasoning=self.constrains_after_reasoning,
            sampling=frozenset(self.sampling),
            logprobs=self.logprobs,
            cached_tokens=self.cached_tokens,
            context_length=self.context_length,
            local=local,
            supervised_elsewhere=supervised_elsewhere,
            kv_tokens=self.kv_tokens,
        )


def describe_engine(
    name: str, capabilities: EngineCapabilities, **fields: Any
) -> EngineDescription:
    """Describe a started engine. `fields` are further fields of the description."""
    known: dict[str, Any] = {
        "context_length": capabilities.context_length,
        "constraints": capabilities.constraints,
        "constrains_after_reasoning": capabilities.constrains_after_reasoning,
        "sampling": tuple(sorted(capabilities.sampling)),
        "logprobs": capabilities.logprobs,
        "cached_tokens": capabilities.cached_tokens,
        "kv_tokens": capabilities.kv_tokens,
    }
    return EngineDescription(name, **{**known, **fields})


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The reply to a `Hello` that is accepted."""

    version: int
    engine: EngineDescription


class Rejection(msgspec.Struct, frozen=True, tag="rejection"):
    """The reply to a `Hello` that is not accepted. The engine then closes the connection."""

    version: int
    reason: str


class Generate(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """Start a stream. The fields are those of `EngineRequest`; `prompt` is little-endian uint32."""

    stream: int
    id: str
    prompt: bytes
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    session: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    expected_tokens: int | None = None
    ends_session: bool = False
    adapter: str | None = None
    parent_session: str | None = None
    strict_priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a stream. Tokens that are in transit may still arrive."""

    stream: int


class Retain(msgspec.Struct, frozen=True, tag="retain"):
    """Keep the cached prompt and output of the request `id` for some time, if there is room."""

    id: str
    seconds: float


class HealthCheck(msgspec.Struct, frozen=True, tag="health_check"):
    """Request a `HealthReport` with the same number."""

    number: int


class StreamFailure(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The error that ended a stream, by its `kind` in `dovetail_model`."""

    stream: int
    kind: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    def to_error(self) -> DovetailError:
        """Return the error to raise in the process of the client."""
        error = error_from_failure(Failure(kind=self.kind, message=self.message, param=self.param))
        error.retry_after = self.retry_after
        return error


class Step(msgspec.Struct, frozen=True, tag="step", omit_defaults=True, gc=False):
    """The output of one engine step: `deltas[i]` belongs to the stream `streams[i]`."""

    streams: list[int] = []
    deltas: list[TokenDelta] = []
    failures: list[StreamFailure] = []


def join_deltas(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """Return the tokens of several deltas of a stream as one delta."""
    if len(deltas) == 1:
        return deltas[0]
    return TokenDelta(
        [id for delta in deltas for id in delta.ids],
        tuple(one for delta in deltas for one in delta.logprobs),
        deltas[-1].finish,
        next((delta.cached for delta in deltas if delta.cached is not None), None),
        all(delta.exact for delta in deltas),
    )


def join_steps(steps: Sequence[Step]) -> Step:
    """Return several steps as one, with one delta per stream, for a reader that fell behind."""
    by_stream: dict[int, list[TokenDelta]] = {}
    for step in steps:
        for stream, delta in zip(step.streams, step.deltas, strict=True):
            by_stream.setdefault(stream, []).append(delta)
    deltas = [join_deltas(each) for each in by_stream.values()]
    return Step(list(by_stream), deltas, [one for step in steps for one in step.failures])


class HealthReport(msgspec.Struct, frozen=True, tag="health_report"):
    """The engine's health. `facts` are its own measurements, such as the running requests.

    `number`: that of the check; 0 in reports that the engine sends every few seconds by itself.
    """

    number: int
    ready: bool
    detail: str = ""
    facts: dict[str, Any] = {}


ClientMessage = Hello | Generate | Abort | Retain | HealthCheck
EngineMessage = Welcome | Rejection | Step | HealthReport

decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode
decode_engine_message = msgspec.msgpack.Decoder(EngineMessage).decode


def to_message(stream: int, request: EngineRequest) -> Generate:
    """Convert a request to the message that starts its stream."""
    return Generate(
        stream=stream,
        id=request.id,
        prompt=_to_little_endian(request.prompt).tobytes(),
        max_tokens=max(request.max_tokens, 1),
        sampling=request.sampling,
        stop_ids=tuple(sorted(request.stop_ids)),
        constraint=request.constraint,
        session=request.session,
        priority=request.priority,
        cache_salt=request.cache_salt,
        expected_tokens=request.expected_tokens,
        ends_session=request.ends_session,
        adapter=request.adapter,
        parent_session=request.parent_session,
        strict_priority=request.strict_priority,
    )


def to_request(message: Generate) -> EngineRequest:
    """Convert the message back. Raise `ValueError` if the prompt is not a list of ids."""
    prompt = array(TOKEN_ID_TYPECODE)
    prompt.frombytes(message.prompt)
    return EngineRequest(
        id=message.id,
        prompt=_to_little_endian(prompt),
        max_tokens=message.max_tokens,
        sampling=message.sampling,
        stop_ids=frozenset(message.stop_ids),
        constraint=message.constraint,
        session=message.session,
        priority=message.priority,
        cache_salt=message.cache_salt,
        expected_tokens=message.expected_tokens,
        ends_session=message.ends_session,
        adapter=message.adapter,
        parent_session=message.parent_session,
        strict_priority=message.strict_priority,
    )


def to_failure(stream: int, error: Exception) -> StreamFailure:
    """Convert the error that ended a stream. Other exceptions are reported as engine errors."""
    if isinstance(error, DovetailError):
        return StreamFailure(stream, error.kind, error.message, error.param, error.retry_after)
    return StreamFailure(stream, "engine", f"{type(error).__name__}: {error}")


def check_hello(hello: Hello, key: str) -> str:
    """Return why a client is rejected; an empty string if it is accepted."""
    if hello.version != PROTOCOL_VERSION:
        return (
            f"the client uses version {hello.version} of the step protocol, "
            f"the engine version {PROTOCOL_VERSION}: install the same version of Dovetail"
        )
    accepted = hmac.compare_digest(hello.key.encode(), key.encode())
    return "" if accepted else "the key is wrong: set --engine-api-key to the key of the engine"


def describe_facts(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copy facts, which any engine may report as any mapping."""
    return dict(facts or {})


def _to_little_endian(ids: "array[int]") -> "array[int]":
    """Convert between this machine's byte order and little-endian."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids
