"""Events of a streamed model output.

Every event that represents model text carries `raw`: the text that the model generated for it,
including markers and framing. The joined `raw` of all events is the complete output.
"""

from typing import ClassVar, Literal

import msgspec

from dovetail_model.context import AppliedEdit
from dovetail_model.server_tool import Citation, ServerToolKind, ServerToolResult
from dovetail_model.upstream import HostedItem, ResponseFields
from dovetail_model.usage import Usage

FinishReason = Literal[
    "stop",
    "length",
    "tool_calls",
    "stop_sequence",
    "context_window",
    "refusal",
    "compaction",
    "pause",
    "cancelled",
    "error",
]


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta", gc=False):
    """A chunk of visible text."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    text: str
    raw: str = ""


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning_delta", gc=False):
    """A chunk of reasoning. The first delta opens the reasoning span."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    text: str
    raw: str = ""


class SpanEnd(msgspec.Struct, frozen=True, tag="span_end", gc=False):
    """The end of the open text or reasoning span.

    The kind `frame` carries markup after a tool call that belongs to no span.
    `seal` is the opaque handle that the client receives with reasoning, if any.
    """

    type: ClassVar[Literal["span_end"]] = "span_end"
    kind: Literal["text", "reasoning", "frame"]
    raw: str = ""
    seal: str | None = None


class CallOpen(msgspec.Struct, frozen=True, tag="call_open", gc=False):
    """The start of a tool call, emitted once its name is known and its arguments have begun.

    It is never withdrawn. `index` counts the calls of the message. `id` is the model's own id, if
    its format has one. `server` is what a call of a server tool does; None if the client runs it.
    """

    type: ClassVar[Literal["call_open"]] = "call_open"
    index: int
    name: str
    id: str | None = None
    namespace: str | None = None
    custom: bool = False
    raw: str = ""
    server: ServerToolKind | None = None


class CallArgs(msgspec.Struct, frozen=True, tag="call_args", gc=False):
    """A chunk of a tool call's arguments: append-only JSON text, or free text of a custom tool."""

    type: ClassVar[Literal["call_args"]] = "call_args"
    index: int
    text: str
    raw: str = ""


class CallClose(msgspec.Struct, frozen=True, tag="call_close", gc=False):
    """The end of a tool call, which may run from now on. A call without it was truncated."""

    type: ClassVar[Literal["call_close"]] = "call_close"
    index: int
    raw: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """One sampled token and the most likely alternatives."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Logprobs(msgspec.Struct, frozen=True, tag="logprobs", gc=False):
    """Log probabilities of the tokens whose text is in the next event."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    tokens: tuple[TokenLogprob, ...]


class Compaction(msgspec.Struct, frozen=True, tag="compaction", gc=False):
    """A summary that replaces the history before it, with the tokens used to generate it.

    `summary` is None if the model produced none.
    """

    type: ClassVar[Literal["compaction"]] = "compaction"
    summary: str | None
    usage: Usage = Usage()


class AppliedEdits(msgspec.Struct, frozen=True, tag="applied_edits"):
    """The context edits in force in the prompt of this response."""

    type: ClassVar[Literal["applied_edits"]] = "applied_edits"
    edits: tuple[AppliedEdit, ...]


class Finish(msgspec.Struct, frozen=True, tag="finish", gc=False):
    """The end of the output and its reason."""

    type: ClassVar[Literal["finish"]] = "finish"
    reason: FinishReason
    stop_sequence: str | None = None


class Diagnostic(msgspec.Struct, frozen=True, tag="diagnostic", gc=False):
    """A tolerated defect of the output. Has a code and the parser family, never model text."""

    type: ClassVar[Literal["diagnostic"]] = "diagnostic"
    code: str
    family: str = ""


class Failure(msgspec.Struct, frozen=True, tag="failure", gc=False):
    """An error that ended the stream. Each protocol codec encodes it in its own format."""

    type: ClassVar[Literal["failure"]] = "failure"
    kind: str
    message: str
    param: str | None = None


Event = (
    TextDelta
    | ReasoningDelta
    | SpanEnd
    | CallOpen
    | CallArgs
    | CallClose
    | ServerToolResult
    | Citation
    | Usage
    | Logprobs
    | Compaction
    | AppliedEdits
    | ResponseFields
    | HostedItem
    | Finish
    | Diagnostic
    | Failure
)
