"""The neutral form of a request, independent of the API that it arrived through."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail_model.block import Block
from dovetail_model.context import ContextManagement, ReasoningRetention
from dovetail_model.error import Unsupported
from dovetail_model.server_tool import ServerTool
from dovetail_model.tool import ToolChoice, ToolSpec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Turn(msgspec.Struct, frozen=True):
    """One turn of a conversation with its blocks in order."""

    role: Role
    blocks: tuple[Block, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters. None means the default of the served model.

    `min_tokens`: the stop tokens end the output only after this many tokens.
    `ignore_eos`: the stop tokens of the model do not end the output.
    `stop_token_ids`: tokens that end the output, in addition to those of the model.
    `logit_bias`: token ids with the bias that is added to their logits.
    """

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
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()


class Thinking(msgspec.Struct, frozen=True):
    """The client's reasoning controls. None leaves the choice to the chat template.

    `retention` states which finished turns keep their reasoning; None means the server's setting.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    keep: Literal["all", "template"] | int = "template"
    summary: str | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    retention: ReasoningRetention | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The required format of the visible output.

    `text` is the regular expression or the grammar (GBNF or Lark), `choices` are the allowed texts.
    `field` is the field of the request that requires the format, for errors.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    schema: Mapping[str, Any] | None = None
    name: str | None = None
    strict: bool = False
    text: str = ""
    choices: tuple[str, ...] = ()
    field: str = "response_format"


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


class RejectedField(msgspec.Struct, frozen=True):
    """A field that must have an effect and that only an upstream server may support."""

    path: str
    message: str


class ClientFields(msgspec.Struct, frozen=True):
    """What the client sent, for an upstream server that renders and parses by itself.

    `api`: the name of the client's API.
    `fields`: the fields of the body as they were sent, without the history and the tools.
    `tools`: the declared tools as they were sent, each with its path.
    `unused`: the paths in `Request.ignored` that a server of the same API receives.
    `rejected`: the fields that every other engine rejects.
    """

    api: str = ""
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tools: tuple[tuple[str, Any], ...] = ()
    unused: tuple[str, ...] = ()
    rejected: tuple[RejectedField, ...] = ()

    def reject_unsupported(self) -> None:
        """Raise `Unsupported` if the client sent a field that only an upstream may support."""
        for field in self.rejected:
            raise Unsupported(field.message, param=field.path)


class Request(msgspec.Struct, frozen=True):
    """A request for one generation.

    `tools` are the tools that the client runs, and those that the server offers for server tools.
    `hosted_tools` are the server tools that the upstream engine runs.
    `unavailable_tools` are the names of declared tools that the server cannot run.
    `max_server_calls` limits the calls of server tools in the response. If `can_pause`, a response
    that reaches a limit of the server ends early, and the client may continue it. If
    `hides_server_calls`, the client's API cannot show such calls, so no later request returns them.
    `unreadable_results` is the number of results of server tools in the history whose seals cannot
    be opened.
    `ignored` lists the paths of fields that have no effect. They are reported to the client.
    `client` has the fields as the client sent them. Only upstream engines read it.
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
    context: ContextManagement = ContextManagement()
    stream: bool = False
    ignored: tuple[str, ...] = ()
    client: ClientFields = ClientFields()
    echo: object = None
    server_tools: tuple[ServerTool, ...] = ()
    hosted_tools: tuple[ServerTool, ...] = ()
    unavailable_tools: tuple[str, ...] = ()
    max_server_calls: int | None = None
    can_pause: bool = False
    hides_server_calls: bool = False
    unreadable_results: int = 0
