"""When the parts of an answer came: thoughts and calls, as the events tell them.

Of several choices the first one's are kept. What a model can make grow is bounded.
"""

from collections.abc import Callable
from typing import Any

from dovetail.telemetry.record import ToolCallRecord, ReasoningSpan
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

MOST = 256  # thoughts, and calls, of one answer
_FLOWING = frozenset((TextDelta, ReasoningDelta, CallArgs))


class Timeline:
    """The parts of one answer. It is shown the batches in which something may begin or end."""

    __slots__ = ("_calls", "_thought", "_thoughts", "diagnostics", "said")

    def __init__(self) -> None:
        self._thought: float | None = None  # when the one that is open began
        self._thoughts: list[ReasoningSpan] = []
        self._calls: dict[int, tuple[CallOpen, float, float | None]] = {}
        self.diagnostics: dict[str, int] = {}
        #: When the answer ended.
        self.said: float | None = None

    def add(self, choice: int, events: list[Event], at: float) -> type[Event] | None:
        """Takes a batch. Gives the kind of event that goes on with what the batch left open."""
        for event in events:
            mark = _MARKS.get(type(event))
            if mark is not None and (choice == 0 or type(event) is Diagnostic):
                mark(self, event, at)
        last = type(events[-1])
        return last if choice == 0 and last in _FLOWING else None

    def thoughts(self, start: float, end: float) -> tuple[ReasoningSpan, ...]:
        """The thoughts from `start` on; one that was never closed ends at `end`."""
        if self._thought is not None:
            self._keep_thought(end)
        return tuple(ReasoningSpan(one.begin - start, one.end - start) for one in self._thoughts)

    def calls(self, start: float, known: frozenset[str]) -> tuple[ToolCallRecord, ...]:
        """The calls from `start` on. A name that is not `known` is the model's own words."""
        return tuple(
            ToolCallRecord(
                opened.id or "",
                opened.name if opened.name in known else "",
                begin - start,
                None if dispatched is None else dispatched - start,
            )
            for opened, begin, dispatched in self._calls.values()
        )

    def _keep_thought(self, at: float) -> None:
        if self._thought is not None and len(self._thoughts) < MOST:
            self._thoughts.append(ReasoningSpan(self._thought, at))
        self._thought = None

    def _think(self, event: ReasoningDelta, at: float) -> None:
        if self._thought is None:
            self._thought = at

    def _end_span(self, event: SpanEnd, at: float) -> None:
        if event.kind == "reasoning":
            self._keep_thought(at)

    def _open_call(self, event: CallOpen, at: float) -> None:
        if len(self._calls) < MOST:
            self._calls[event.index] = (event, at, None)

    def _close_call(self, event: CallClose, at: float) -> None:
        opened, begin, _ = self._calls.get(event.index, (None, at, None))
        if opened is not None:
            self._calls[event.index] = (opened, begin, at)

    def _diagnose(self, event: Diagnostic, at: float) -> None:
        self.diagnostics[event.code] = self.diagnostics.get(event.code, 0) + 1

    def _end(self, event: Finish | Failure, at: float) -> None:
        self.said = at


_MARKS: dict[type[Event], Callable[[Timeline, Any, float], None]] = {
    ReasoningDelta: Timeline._think,
    SpanEnd: Timeline._end_span,
    CallOpen: Timeline._open_call,
    CallClose: Timeline._close_call,
    Diagnostic: Timeline._diagnose,
    Finish: Timeline._end,
    Failure: Timeline._end,
}
