"""Events: what a model's output becomes while it streams.

Every event that stands for model text carries `raw`, the text the model wrote for it, markers
and framing included. The raws of a stream, joined, are the whole output: nothing is lost.
"""

from typing import ClassVar, Literal

import msgspec

from dovetail_model.usage import Usage

FinishReason = Literal[
    "stop",
    "length",
    "tool_calls",
    "stop_sequence",
    "context_window",
    "refusal",
    "cancelled",
    "error",
]


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta", gc=False):
    """More visible text."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    text: str
    raw: str = ""


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning_delta", gc=False):
    """More reasoning; the first delta opens the span."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    text: str
    raw: str = ""


class SpanEnd(msgspec.Struct, frozen=True, tag="span_end", gc=False):
    """The open text or reasoning span has ended; a `frame` is markup behind a call, in no span.

    `seal` is the opaque handle that the client gets with reasoning, if any.
    """

    type: ClassVar[Literal["span_end"]] = "span_end"
    kind: Literal["text", "reasoning", "frame"]
    raw: str = ""
    seal: str | None = None


class CallOpen(msgspec.Struct, frozen=True, tag="call_open", gc=False):
    """A call has begun: its name is known and its arguments have opened. Never withdrawn.

    `index` counts the calls of the message; `id` is the model's own, where its format has one.
    """

    type: ClassVar[Literal["call_open"]] = "call_open"
    index: int
    name: str
    id: str | None = None
    namespace: str | None = None
    custom: bool = False
    raw: str = ""


class CallArgs(msgspec.Struct, frozen=True, tag="call_args", gc=False):
    """More of a call's arguments: append-only JSON text, or free text for a custom tool."""

    type: ClassVar[Literal["call_args"]] = "call_args"
    index: int
    text: str
    raw: str = ""


class CallClose(msgspec.Struct, frozen=True, tag="call_close", gc=False):
    """The call is complete and may run now. A call without this event was truncated."""

    type: ClassVar[Literal["call_close"]] = "call_close"
    index: int
    raw: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """One sampled token and the most likely alternatives."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Logprobs(msgspec.Struct, frozen=True, tag="logprobs", gc=False):
    """Log probabilities of tokens whose text the following event carries."""

    type: ClassVar[Literal["logprobs"]] = "logprobs"
    tokens: tuple[TokenLogprob, ...]


class Finish(msgspec.Struct, frozen=True, tag="finish", gc=False):
    """The output has ended, and why."""

    type: ClassVar[Literal["finish"]] = "finish"
    reason: FinishReason
    stop_sequence: str | None = None


class Diagnostic(msgspec.Struct, frozen=True, tag="diagnostic", gc=False):
    """Malformed output that was tolerated. Holds a code and the family, never model text."""

    type: ClassVar[Literal["diagnostic"]] = "diagnostic"
    code: str
    family: str = ""


class Failure(msgspec.Struct, frozen=True, tag="failure", gc=False):
    """The stream failed. Each protocol codec encodes it in its own format."""

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
    | Usage
    | Logprobs
    | Finish
    | Diagnostic
    | Failure
)
