"""When the parts of an answer came: thoughts and calls, as the events tell them.

Of several choices the first one's are kept. What a model can make grow is bounded.
"""

from collections.abc import Callable
from typing import Any

from dovetail.telemetry.record import ReasoningSpan, ToolCallRecord
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Failure,
    Finish,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
)

MAX_PARTS = 256  # thoughts, and calls, of one answer
_DELTA_TYPES = frozenset((TextDelta, ReasoningDelta, CallArgs))


class OutputTimeline:
    """The parts of one answer. It is shown the batches in which something may begin or end."""

    __slots__ = (
        "_tool_calls",
        "_reasoning_started_at",
        "_reasoning_spans",
        "diagnostics",
        "ended_at",
    )

    def __init__(self) -> None:
        self._reasoning_started_at: float | None = None  # when the one that is open began
        self._reasoning_spans: list[ReasoningSpan] = []
        self._tool_calls: dict[int, tuple[CallOpen, float, float | None]] = {}
        self.diagnostics: dict[str, int] = {}
        #: When the answer ended.
        self.ended_at: float | None = None

    def add(self, choice: int, events: list[Event], at: float) -> type[Event] | None:
        """Takes a batch. Gives the kind of event that goes on with what the batch left open."""
        for event in events:
            mark = _HANDLERS.get(type(event))
            if mark is not None and (choice == 0 or type(event) is Diagnostic):
                mark(self, event, at)
        last = type(events[-1])
        return last if choice == 0 and last in _DELTA_TYPES else None

    def reasoning_spans(self, start: float, end: float) -> tuple[ReasoningSpan, ...]:
        """The thoughts from `start` on; one that was never closed ends at `end`."""
        if self._reasoning_started_at is not None:
            self._close_reasoning(end)
        return tuple(
            ReasoningSpan(one.begin - start, one.end - start) for one in self._reasoning_spans
        )

    def tool_calls(self, start: float, tool_names: frozenset[str]) -> tuple[ToolCallRecord, ...]:
        """The calls from `start` on. A name that is not `known` is the model's own words."""
        return tuple(
            ToolCallRecord(
                opened.id or "",
                opened.name if opened.name in tool_names else "",
                begin - start,
                None if dispatched is None else dispatched - start,
            )
            for opened, begin, dispatched in self._tool_calls.values()
        )

    def _close_reasoning(self, at: float) -> None:
        if self._reasoning_started_at is not None and len(self._reasoning_spans) < MAX_PARTS:
            self._reasoning_spans.append(ReasoningSpan(self._reasoning_started_at, at))
        self._reasoning_started_at = None

    def _open_reasoning(self, event: ReasoningDelta, at: float) -> None:
        if self._reasoning_started_at is None:
            self._reasoning_started_at = at

    def _end_span(self, event: SpanEnd, at: float) -> None:
        if event.kind == "reasoning":
            self._close_reasoning(at)

    def _open_call(self, event: CallOpen, at: float) -> None:
        if len(self._tool_calls) < MAX_PARTS:
            self._tool_calls[event.index] = (event, at, None)

    def _close_call(self, event: CallClose, at: float) -> None:
        opened, begin, _ = self._tool_calls.get(event.index, (None, at, None))
        if opened is not None:
            self._tool_calls[event.index] = (opened, begin, at)

    def _count_diagnostic(self, event: Diagnostic, at: float) -> None:
        self.diagnostics[event.code] = self.diagnostics.get(event.code, 0) + 1

    def _end(self, event: Finish | Failure, at: float) -> None:
        self.ended_at = at


_HANDLERS: dict[type[Event], Callable[[OutputTimeline, Any, float], None]] = {
    ReasoningDelta: OutputTimeline._open_reasoning,
    SpanEnd: OutputTimeline._end_span,
    CallOpen: OutputTimeline._open_call,
    CallClose: OutputTimeline._close_call,
    Diagnostic: OutputTimeline._count_diagnostic,
    Finish: OutputTimeline._end,
    Failure: OutputTimeline._end,
}
