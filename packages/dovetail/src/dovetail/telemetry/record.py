"""What is known of a request when it is over: what metrics, logs, traces and spans are made of."""

from array import array
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from dovetail_model import Usage


class ReasoningSpan(msgspec.Struct, frozen=True):
    """A span of thought: when it began and ended, in seconds from the request's beginning."""

    begin: float
    end: float


class ToolCallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that the model made.

    `name` is one of the request's tools, empty where it is none of them: then it is text of the
    answer. From `begin` on it was written; from `dispatched` on the client could run it, None
    where it was never finished.
    """

    id: str
    name: str
    begin: float
    dispatched: float | None = None


class PrefixStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prompt beside the last one of its session.

    `common` of its `total` leading tokens stood there or were said then, `lost` tokens of then are
    a prefix no longer, `reason` is why. `reused` leading tokens came from the ledger as they were.
    `turns` are the assistant turns by how they stand in the prompt.
    """

    common: int
    total: int
    lost: int = 0
    reused: int = 0
    reason: str | None = None
    turns: dict[str, int] = {}


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished request. Nothing in it is text of a prompt or an answer.

    `model` is the served model's own name, empty where none was found, `asked` what the client
    called it. `status` is the HTTP status; where a stream broke after its beginning, the one that
    the error would have been, and 499 where the client hung up.

    `began` is the wall clock's time. All other times are seconds from then, None where it did not
    come so far: `decoded` (the request was there and understood), `admitted` (there was room for
    it), `prepared` (its prompt was made), `first_token`, `said` (the answer's end), `duration`.

    `results` are the calls whose results came with this request. `replica` is the number of the
    one that answered, `migrations` how often the answer went on on another, `carried` how many
    tokens it took along. `reprefilled` are prompt tokens that the engine had read before and had
    to read again, None where it does not say. `diagnostics` counts what was malformed in the
    answer, by code. `reason` tells more of an `error`, in a word of ours. `prefix_line` is the
    doctor's line, where it is asked for.
    """

    id: str
    endpoint: str
    status: int
    duration: float
    began: float = 0.0
    transport: Literal["http", "websocket"] = "http"
    traceparent: str | None = None
    model: str = ""
    asked: str = ""
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
    said: float | None = None
    thoughts: tuple[ReasoningSpan, ...] = ()
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
        """What it waited for before the model spoke, as far as it came: name, begin, end."""
        known = (
            ("queue", self.decoded, self.admitted),
            ("prepare", self.admitted, self.prepared),
            ("prefill", self.prepared, self.first_token),
        )
        for name, begin, end in known:
            if begin is not None and end is not None:
                yield name, begin, end

    def call_end(self, call: ToolCallRecord) -> float:
        """When a call was written; one that was cut, with the answer."""
        cut = self.duration if self.said is None else self.said
        return cut if call.dispatched is None else call.dispatched


class RequestContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a request was made of. It may go no further than into what is derived from it.

    `ids` is the prompt, `key` its tenant's own, `body` and `answer` are what was read and sent,
    where payloads are kept.
    """

    ids: "array[int] | None" = None
    key: bytes = b""
    body: bytes | None = None
    answer: bytes | None = None


class RequestRecorder(Protocol):
    """Who is told of every request that is over, on the loop: it must not wait for anything."""

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None: ...

    def close(self) -> None:
        """Nothing more comes: what is still to be written is. May take its time."""
