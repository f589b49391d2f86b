"""The record of a finished request, from which metrics, logs, traces and spans are made."""

from array import array
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from dovetail_model import Usage


class ReasoningSpan(msgspec.Struct, frozen=True):
    """A reasoning span: its begin and end, in seconds from the start of the request."""

    begin: float
    end: float


class ToolCallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of the model.

    `name` is empty if it is none of the request's tools: then it is model output. `begin` is when
    it began to be generated, `dispatched` when the client could run it, None if it was never
    complete.
    """

    id: str
    name: str
    begin: float
    dispatched: float | None = None


class PrefixStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prompt compared with the previous one of its session.

    `common` of its `total` leading tokens were in the previous prompt or its output, `lost` tokens
    of the previous one are no longer a prefix, `reason` is why. `reused` leading tokens came
    unchanged from the ledger. `turns` counts the assistant turns by their origin in the prompt.
    """

    common: int
    total: int
    lost: int = 0
    reused: int = 0
    reason: str | None = None
    turns: dict[str, int] = {}


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished request. It contains no text of a prompt or a response.

    The encoded names are those of the trace schema `dovetail.request/1`.

    `model` is the served model's own name, empty if none was found, `requested_model` the client's
    name for it. `status` is the HTTP status; if a stream failed after its start, the status that
    the error would have had, and 499 if the client disconnected.

    `began` is a wall clock time. All other times are seconds from then, None if that stage was not
    reached: `decoded`, `admitted`, `prepared` (the prompt was built), `first_token`, `last_event`
    (the end of the output), `duration`.

    `results` are the calls whose results came with this request. `replica` is the number of the
    replica, `migrations` how often the response was migrated to another one, with `carried` tokens.
    `reprefilled` are prompt tokens that the engine prefilled again, None if it does not report
    that. `diagnostics` counts malformed output by code. `reason` details an `error`, from a closed
    set. `prefix_line` is the line of the prefix diagnostics, if enabled.
    """

    id: str
    endpoint: str
    status: int
    duration: float
    began: float = 0.0
    transport: Literal["http", "websocket"] = "http"
    traceparent: str | None = None
    model: str = ""
    requested_model: str = msgspec.field(default="", name="asked")
    stream: bool = False
    tenant: str = ""
    session: str | None = None
    parent: str | None = None
    agent: str | None = None
    compaction: bool = False
    usage: Usage | None = None
    decoded: float | None = None
    admitted: float | None = None
    prepared: float | None = None
    first_token: float | None = None
    last_event: float | None = msgspec.field(default=None, name="said")
    reasoning_spans: tuple[ReasoningSpan, ...] = msgspec.field(default=(), name="thoughts")
    calls: tuple[ToolCallRecord, ...] = ()
    results: tuple[str, ...] = ()
    prefix: PrefixStats | None = None
    reprefilled: int | None = None
    replica: int | None = None
    migrations: int = 0
    carried: int = 0
    diagnostics: dict[str, int] = {}
    finish: str | None = None
    error: str | None = None
    reason: str | None = None
    disconnected: bool = False
    prefix_line: str | None = None

    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Yield the stages before the first token that were reached: name, begin, end."""
        stages = (
            ("queue", self.decoded, self.admitted),
            ("prepare", self.admitted, self.prepared),
            ("prefill", self.prepared, self.first_token),
        )
        for name, begin, end in stages:
            if begin is not None and end is not None:
                yield name, begin, end

    def call_end(self, call: ToolCallRecord) -> float:
        """When a call was complete; for a truncated one, the end of the output."""
        output_end = self.duration if self.last_event is None else self.last_event
        return output_end if call.dispatched is None else call.dispatched


class RequestContents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a request. They are only used to derive data from them.

    `ids` is the prompt, `key` the tenant's key for digests, `body` and `response_body` are the
    payloads, where these are traced.
    """

    ids: "array[int] | None" = None
    key: bytes = b""
    body: bytes | None = None
    response_body: bytes | None = None


class RequestRecorder(Protocol):
    """Receives every finished request on the event loop: it must not block."""

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None: ...

    def close(self) -> None:
        """Write what is pending. May block."""
