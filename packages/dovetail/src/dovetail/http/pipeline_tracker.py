"""Track a request in the pipeline: its prompt, its replicas, and the timing of its output.

Of several choices, only the output of the first is recorded. All records that grow with the output
of a model are bounded.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from dovetail.http.diagnostics import ResponseDiagnostics
from dovetail.net.trace_context import parse_traceparent
from dovetail.pipeline.execution import RequestObserver
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.recovery import RecoveryKind
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import OutputSpan, PrefixStats, ToolCallRecord
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    Identity,
    ReasoningDelta,
    Request,
    ServerToolKind,
    ServerToolResult,
    SpanEnd,
    TextDelta,
    ToolResultBlock,
    ToolSpec,
    Usage,
)

MAX_PARTS = 256  # reasoning spans, and tool calls, of one response
_DELTA_TYPES = frozenset((TextDelta, ReasoningDelta, CallArgs))


class OutputTimeline:
    """Times of the reasoning spans, text spans and tool calls of one response.

    It needs only the batches in which a span or call starts or ends.
    """

    __slots__ = (
        "_reasoning_spans",
        "_reasoning_started_at",
        "_report",
        "_returned",
        "_text_spans",
        "_text_started_at",
        "_tool_calls",
        "diagnostics",
        "ended_at",
    )

    def __init__(self, report: ResponseDiagnostics) -> None:
        self._report = report
        self._reasoning_started_at: float | None = None  # start of the open span
        self._reasoning_spans: list[OutputSpan] = []
        self._text_started_at: float | None = None
        self._text_spans: list[OutputSpan] = []
        self._tool_calls: dict[int, tuple[CallOpen, float, float | None]] = {}
        self._returned: dict[int, float] = {}  # call index -> time of the result
        self.diagnostics: dict[str, int] = {}
        #: When the response ended.
        self.ended_at: float | None = None

    def add(self, choice: int, events: list[Event], at: float) -> type[Event] | None:
        """Add a batch. Returns the type of events that only continue the part it leaves open."""
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None and (choice == 0 or type(event) is Diagnostic):
                handler(self, event, at)
        last = type(events[-1])
        return last if choice == 0 and last in _DELTA_TYPES else None

    def reasoning_spans(self, start: float, end: float) -> tuple[OutputSpan, ...]:
        """Return the reasoning spans relative to `start`; an open span ends at `end`."""
        self._close_reasoning(end)
        return _relative_spans(self._reasoning_spans, start)

    def text_spans(self, start: float, end: float) -> tuple[OutputSpan, ...]:
        """Return the text spans relative to `start`; an open span ends at `end`."""
        self._close_text(end)
        return _relative_spans(self._text_spans, start)

    def tool_calls(self, start: float, tools: Sequence[ToolSpec]) -> tuple[ToolCallRecord, ...]:
        """Return the tool calls relative to `start`, without names that are not in `tools`."""
        if not self._tool_calls:
            return ()
        tool_names = {tool.name for tool in tools}
        return tuple(
            ToolCallRecord(
                opened.id or "",
                opened.name if opened.name in tool_names else "",
                begin - start,
                None if dispatched is None else dispatched - start,
                self._returned[index] - start if index in self._returned else None,
            )
            for index, (opened, begin, dispatched) in self._tool_calls.items()
        )

    def _close_reasoning(self, at: float) -> None:
        if self._reasoning_started_at is not None and len(self._reasoning_spans) < MAX_PARTS:
            self._reasoning_spans.append(OutputSpan(self._reasoning_started_at, at))
        self._reasoning_started_at = None

    def _close_text(self, at: float) -> None:
        if self._text_started_at is not None and len(self._text_spans) < MAX_PARTS:
            self._text_spans.append(OutputSpan(self._text_started_at, at))
        self._text_started_at = None

    def _open_text(self, event: TextDelta, at: float) -> None:
        if self._text_started_at is None:
            self._text_started_at = at

    def _open_reasoning(self, event: ReasoningDelta, at: float) -> None:
        if self._reasoning_started_at is None:
            self._reasoning_started_at = at

    def _end_span(self, event: SpanEnd, at: float) -> None:
        if event.kind == "reasoning":
            self._close_reasoning(at)
        elif event.kind == "text":
            self._close_text(at)

    def _open_call(self, event: CallOpen, at: float) -> None:
        self._close_text(at)
        if len(self._tool_calls) < MAX_PARTS:
            self._tool_calls[event.index] = (event, at, None)

    def _close_call(self, event: CallClose, at: float) -> None:
        opened, begin, _ = self._tool_calls.get(event.index, (None, at, None))
        if opened is not None:
            self._tool_calls[event.index] = (opened, begin, at)

    def _add_server_result(self, event: ServerToolResult, at: float) -> None:
        if event.index in self._tool_calls:
            self._returned[event.index] = at

    def _count_diagnostic(self, event: Diagnostic, at: float) -> None:
        self.diagnostics[event.code] = self.diagnostics.get(event.code, 0) + 1
        self._report.add(event.code)

    def _end(self, event: Finish | Failure, at: float) -> None:
        self.ended_at = at


def _relative_spans(spans: list[OutputSpan], start: float) -> tuple[OutputSpan, ...]:
    return tuple([OutputSpan(span.begin - start, span.end - start) for span in spans])


_HANDLERS: dict[type[Event], Callable[[OutputTimeline, Any, float], None]] = {
    TextDelta: OutputTimeline._open_text,
    ReasoningDelta: OutputTimeline._open_reasoning,
    SpanEnd: OutputTimeline._end_span,
    CallOpen: OutputTimeline._open_call,
    CallClose: OutputTimeline._close_call,
    ServerToolResult: OutputTimeline._add_server_result,
    Diagnostic: OutputTimeline._count_diagnostic,
    Finish: OutputTimeline._end,
    Failure: OutputTimeline._end,
}


_MAX_NAME_CHARS = 256  # of names that clients send
_MAX_RESULTS = 256


def truncate_name(name: str) -> str:
    """Truncate a name from a client to a length that is suitable for logs."""
    return name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS]


def truncate_names(identity: Identity) -> Identity:
    """Return an identity whose names are suitable for logs."""
    names = {name: getattr(identity, name) for name in ("session", "parent", "agent")}
    long = {name: value for name, value in names.items() if value and len(value) > _MAX_NAME_CHARS}
    if not long:
        return identity
    return replace(identity, **{name: value[:_MAX_NAME_CHARS] for name, value in long.items()})


def client_traceparent(header: str | None) -> str | None:
    """Return the client's span from a `traceparent` header, or None if it is invalid."""
    span = parse_traceparent(header)
    return None if span is None else str(span)


def new_tool_result_ids(request: Request) -> tuple[str, ...]:
    """Return the ids of the calls whose results follow the last assistant turn."""
    ids: list[str] = []
    for turn in reversed(request.turns):
        if turn.role == "assistant":
            break
        ids += [b.call_id for b in reversed(turn.blocks) if isinstance(b, ToolResultBlock)]
    return tuple([truncate_name(id) for id in islice(reversed(ids), _MAX_RESULTS)])


def prefix_stats(prepared: PreparedRequest) -> PrefixStats:
    """Compare the prompt with the previous prompt of its session."""
    diagnosis = prepared.diagnosis
    is_first = "assistant" not in [turn.role for turn in prepared.request.turns]
    return PrefixStats(
        common=diagnosis.common_tokens,
        total=diagnosis.total_tokens,
        # A sub-agent in the session of its caller starts a new conversation, so no tokens of it
        # are re-prefilled.
        lost=0 if is_first else diagnosis.reprefilled_tokens,
        reused=diagnosis.reused_tokens,
        reason=diagnosis.reason,
        turns=_count_turns(prepared),
        diverged_at=diagnosis.diverged_at,
        turn=diagnosis.turn,
        shared=diagnosis.shared_tokens,
    )


def _count_turns(prepared: PreparedRequest) -> dict[str, int]:
    """Count the assistant turns by how they were rendered, starting with the first new turn."""
    prompt, turns = prepared.prompt, prepared.request.turns
    start = prompt.history.anchor_index or 0
    end = len(turns) - (1 if turns and turns[-1].role == "assistant" else 0)
    assistant_turns = [turn.role for turn in turns[start:end]].count("assistant")
    exact, rewritten = len(prompt.exact_turns | prompt.unchanged_turns), len(prompt.rewritten_turns)
    return {
        "exact": exact,
        "written": rewritten,
        "natural": max(0, assistant_turns - exact - rewritten),
    }


class PipelineTracker:
    """Record what the pipeline does with one request. Metrics are updated immediately."""

    __slots__ = (
        "_cached_reported",
        "_metrics",
        "_model",
        "_report",
        "carried_tokens",
        "migrations",
        "prefix",
        "prepared",
        "prepared_at",
        "replica",
        "usage_by_choice",
    )

    def __init__(self, metrics: Metrics, report: ResponseDiagnostics, model: str = "") -> None:
        self._metrics = metrics
        self._report = report
        self._model = model
        self._cached_reported = False
        self.prepared: PreparedRequest | None = None
        self.prepared_at: float | None = None
        self.prefix: PrefixStats | None = None
        self.replica: int | None = None  # the last assigned replica
        self.migrations = 0
        self.carried_tokens = 0  # output tokens that were passed to other replicas
        self.usage_by_choice: dict[int, Usage] = {}  # set when a choice finishes

    def create_observer(self) -> RequestObserver:
        return RequestObserver(
            on_prepared=self._on_prepared,
            on_next_turn=self._on_next_turn,
            on_server_call=self._on_server_call,
            on_note=self._report.add,
            on_inexact=self._on_inexact,
            on_migrated=self._on_migrated,
            on_recovered=self._on_recovered,
            on_upstream_request=self._on_sent_upstream,
            on_replica_assigned=self._on_replica_selected,
            on_choice_finished=self._on_choice_finished,
        )

    def reprefilled_tokens(self, usage: Usage | None) -> int | None:
        """Return the number of re-prefilled prompt tokens; None if it is unknown."""
        if usage is None or self.prefix is None or not self._cached_reported:
            return None
        return max(0, self.prefix.common - usage.cached_tokens)

    def _on_prepared(self, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self.prepared_at = perf_counter()
        self._count_prompt(prepared, None)

    def _on_next_turn(self, prepared: PreparedRequest) -> None:
        """Add a further model turn of the response, whose usage is added up as well."""
        self._count_prompt(prepared, self.prefix)

    def _on_server_call(self, kind: ServerToolKind, outcome: str, seconds: float) -> None:
        self._metrics.count_server_call(kind, outcome, seconds)

    def _count_prompt(self, prepared: PreparedRequest, before: PrefixStats | None) -> None:
        stats = prefix_stats(prepared)
        self.prefix = stats if before is None else before.add(stats)
        failed = prepared.prompt.notes.count("splice_failed")
        self._metrics.count_prompt(self._model, stats, failed)
        for note in prepared.prompt.notes:
            self._report.add(note)

    def _on_inexact(self) -> None:
        self._metrics.count_inexact_turn(self._model)

    def _on_migrated(self, carried: int) -> None:
        """Count a migration: another replica continues after `carried` output tokens."""
        self.migrations += 1
        self.carried_tokens += carried
        self._metrics.count_migration(self._model, carried)

    def _on_recovered(self, kind: RecoveryKind, inserted: int, dropped: int) -> None:
        """Report a recovered turn, with the tokens that were inserted into it or dropped."""
        self._metrics.count_recovery(self._model, kind, inserted, dropped)
        self._report.add(f"recovered:{kind}")

    def _on_sent_upstream(self, turns: int) -> None:
        """Count turns that were sent upstream as text, so their rendering is unknown."""
        self._metrics.count_replayed_turns(self._model, {"relayed": turns})

    def _on_replica_selected(self, replica: int) -> None:
        self.replica = replica

    def _on_choice_finished(self, choice: int, usage: Usage, cached_reported: bool) -> None:
        """Record the usage of a finished or cancelled choice. Upstreams report it by events."""
        self.usage_by_choice[choice] = usage
        self._cached_reported |= cached_reported
