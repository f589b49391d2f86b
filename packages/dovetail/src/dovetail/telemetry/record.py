"""The record of a finished request, the source of metrics, logs, traces and spans."""

from array import array
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from dovetail_model import Usage


class OutputSpan(msgspec.Struct, frozen=True):
    """A span of reasoning or text: begin and end in seconds from the start of the request."""

    begin: float
    end: float


class ToolCallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of the model.

    `name`: the name of the tool, empty if the request has no such tool, since it would be model
    output.
    `begin`: the time of its first output.
    `dispatched`: the time when the client could run it, None if it was never complete.
    `returned`: the time when the server had its result, None for a call that the client runs.
    """

    id: str
    name: str
    begin: float
    dispatched: float | None = None
    returned: float | None = None


class PrefixStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prompt compared with the previous one of its session.

    `common`: leading tokens that equal the previous prompt and its output.
    `total`: all tokens of the prompt.
    `lost`: tokens of the previous prompt and its output that are no longer a prefix.
    `reused`: leading tokens that were reused from the ledger.
    `reason`: the reason of the divergence.
    `turns`: the assistant turns by origin of their tokens.
    `diverged_at`: the index of the first divergent token.
    `turn`: the index of the first changed turn, if a turn changed.
    `shared`: for the first prompt of a session, the longest common prefix with another session.
    """

    common: int
    total: int
    lost: int = 0
    reused: int = 0
    reason: str | None = None
    turns: dict[str, int] = {}
    diverged_at: int | None = None
    turn: int | None = None
    shared: int = 0

    def add(self, other: "PrefixStats") -> "PrefixStats":
        """Add the prompt of a further model turn of the same response."""
        kinds = self.turns | other.turns
        return PrefixStats(
            self.common + other.common,
            self.total + other.total,
            self.lost + other.lost,
            self.reused + other.reused,
            self.reason or other.reason,
            {kind: self.turns.get(kind, 0) + other.turns.get(kind, 0) for kind in kinds},
            self.diverged_at if self.reason else other.diverged_at,
            self.turn if self.reason else other.turn,
            self.shared,
        )


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished request. It contains no text of a prompt or a response.

    The encoded names are those of the trace schema `dovetail.request/1`.

    `model`: the main name of the served model, empty if no model was found.
    `requested_model`: the model name in the request.
    `status`: the HTTP status. If a stream failed after its start, the status that the error would
    have had; 499 if the client disconnected.

    `began`: a wall clock time. All other times are seconds from then, None if the stage was not
    reached: `decoded`, `admitted`, `prepared` (the prompt was built), `first_token`, `last_event`
    (the end of the output), `duration`.

    `key`: the name of the API key, else the first digits of its hash.
    `harness`: the harness or SDK that sent the request.
    `notes`: what was reported to the client: ignored fields, rewritten turns, tolerated output.
    `results`: the ids of calls whose results are in the request.
    `replica`: the number of the replica.
    `migrations`: the number of migrations to another replica.
    `carried`: the generated tokens that migrations carried over.
    `reprefilled`: prompt tokens that the engine prefilled again, None if it does not report them.
    `diagnostics`: malformed output, counted by code.
    `reason`: details of an `error`, from a closed set.
    `prefix_line`: the line of the prefix diagnostics, if enabled.
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
    key: str = ""
    session: str | None = None
    parent: str | None = None
    agent: str | None = None
    harness: str = ""
    compaction: bool = False
    usage: Usage | None = None
    decoded: float | None = None
    admitted: float | None = None
    prepared: float | None = None
    first_token: float | None = None
    last_event: float | None = msgspec.field(default=None, name="said")
    reasoning_spans: tuple[OutputSpan, ...] = msgspec.field(default=(), name="thoughts")
    text_spans: tuple[OutputSpan, ...] = msgspec.field(default=(), name="texts")
    calls: tuple[ToolCallRecord, ...] = ()
    results: tuple[str, ...] = ()
    prefix: PrefixStats | None = None
    reprefilled: int | None = None
    replica: int | None = None
    migrations: int = 0
    carried: int = 0
    diagnostics: dict[str, int] = {}
    notes: tuple[str, ...] = ()
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
        """Return the time when a call was complete, or the end of the output if truncated.

        A call that the server ran ends with its result.
        """
        if call.returned is not None:
            return call.returned
        output_end = self.duration if self.last_event is None else self.last_event
        return output_end if call.dispatched is None else call.dispatched


class RequestContents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a request, from which recorders derive data.

    `ids`: the prompt.
    `key`: the key of the tenant for digests.
    `body`, `response_body`: the payloads, if they are captured.
    `divergence`: the text before the divergence of the prompt, the old and the new text after it.
    """

    ids: "array[int] | None" = None
    key: bytes = b""
    body: bytes | None = None
    response_body: bytes | None = None
    divergence: tuple[str, str, str] | None = None


class StartedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose session and model are known. `at` is a wall clock time."""

    at: float
    tenant: str
    model: str
    session: str | None
    parent: str | None
    agent: str | None
    harness: str


class StartRecorder(Protocol):
    """A recorder that is also called when a request is decoded."""

    def start_request(self, started: StartedRequest) -> None: ...


class RequestRecorder(Protocol):
    """Receives every finished request on the event loop, so it must not block."""

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None: ...

    def close(self) -> None:
        """Write pending data. May block."""
