"""The neutral form of a request, independent of the API that it arrived through."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail_model.block import Block
from dovetail_model.tool import ToolChoice, ToolSpec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Turn(msgspec.Struct, frozen=True):
    """One turn of a conversation with its blocks in order."""

    role: Role
    blocks: tuple[Block, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters. None means the default of the served model."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1


class Thinking(msgspec.Struct, frozen=True):
    """The client's reasoning controls. None leaves the choice to the chat template."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    keep: Literal["all", "template"] | int = "template"
    summary: str | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)


class OutputFormat(msgspec.Struct, frozen=True):
    """The required format of the visible output."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: Mapping[str, Any] | None = None
    name: str | None = None
    strict: bool = False


class Identity(msgspec.Struct, frozen=True):
    """The client's identity, read from headers and metadata. It is never part of the prompt.

    `final`: the session ends with this request.
    `response_number`: the number in the response's public id, if the server assigned one.
    `cache_scope`: requests with the same scope share an engine's prefix cache. None: those of the
    tenant. An empty scope is shared by all.
    """

    tenant: str = ""
    session: str | None = None
    parent: str | None = None
    agent: str | None = None
    user: str | None = None
    compaction: bool = False
    final: bool = False
    response_number: str = ""
    cache_scope: str | None = None


class Hints(msgspec.Struct, frozen=True):
    """Scheduling hints from a harness, and the dispatch events that it requests."""

    priority: int | None = None
    strict_priority: int | None = None
    osl: int | None = None
    latency_sensitivity: float | None = None
    speculative_prefill: bool = False
    cache_salt: str | None = None
    dispatch: frozenset[Literal["tools", "reasoning"]] = frozenset()


class Request(msgspec.Struct, frozen=True):
    """A request for one generation.

    `ignored` lists the paths of unknown fields, which are reported and have no effect.
    `echo` is opaque: it holds what the codec that decoded the request needs to encode the response.
    Code between decode and encode must not read it.
    """

    model: str
    turns: tuple[Turn, ...] = ()
    system: tuple[Block, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    sampling: Sampling = Sampling()
    thinking: Thinking = Thinking()
    output: OutputFormat = OutputFormat()
    identity: Identity = Identity()
    hints: Hints = Hints()
    stream: bool = False
    ignored: tuple[str, ...] = ()
    echo: object = None
