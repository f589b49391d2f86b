"""A trace as a timeline: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

A session is a process, its agent and sub-agents are threads. Every request is a slice, with slices
in it for what it waited for and what the model did. Between a call and the request that brings its
result the client was at work: that wait is a slice of its own, and an arrow goes from the call to
that request. Only complete events are used ("X"), so nothing has to be balanced. Each lasts a
microsecond at least: in one that has no length, Perfetto puts whatever begins at that moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dovetail.telemetry.record import ToolCallRecord
from dovetail.telemetry.trace.reader import ToolWait, Trace
from dovetail.telemetry.trace.sessions import ThreadTrack, TrackAllocator, find_parent_sessions
from dovetail.telemetry.trace.writer import TraceLine

Json = dict[str, Any]
_ARG_FIELDS = (
    "id",
    "endpoint",
    "transport",
    "status",
    "model",
    "asked",
    "finish",
    "error",
    "replica",
)


def build_timeline(trace: Trace) -> Json:
    """The whole timeline, ready to be written as JSON."""
    drawn = _TimelineBuilder(trace)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"source": "dovetail", "requests": len(trace.lines)},
        "traceEvents": [*drawn.metadata_events(), *drawn.events],
    }


@dataclass(frozen=True)
class _Slice:
    """A piece of a request, in microseconds of the wall clock."""

    name: str
    kind: str
    begin: int
    end: int
    call: ToolCallRecord | None = None


class _TimelineBuilder:
    """The events of a trace: requests in the order they began, then what lies between them."""

    def __init__(self, trace: Trace) -> None:
        self.events: list[Json] = []
        self._call_slices: dict[int, _Slice] = {}
        self._tracks = TrackAllocator(find_parent_sessions(trace.lines))
        self._tracks_by_line = [self._add_request(line) for line in trace.lines]
        places = {id(line): at for at, line in enumerate(trace.lines)}
        for flow, wait in enumerate(trace.tool_waits(), 1):
            lanes = (
                self._tracks_by_line[places[id(wait.line)]],
                self._tracks_by_line[places[id(wait.result_line)]],
            )
            self._add_tool_wait(wait, lanes, flow)

    def metadata_events(self) -> Iterator[Json]:
        """What processes and threads are called, and the order they stand in."""
        for process in self._tracks.process_tracks():
            yield _metadata_event("process_name", process.number, None, name=process.name)
            order = process.number
            yield _metadata_event("process_sort_index", process.number, None, sort_index=order)
        for lane in self._tracks.thread_tracks():
            yield _metadata_event("thread_name", lane.process, lane.number, name=lane.name)
            yield _metadata_event(
                "thread_sort_index", lane.process, lane.number, sort_index=lane.number
            )

    def _add_request(self, line: TraceLine) -> ThreadTrack:
        parts = list(_slices(line))
        begin = _to_microseconds(line, 0.0)
        end = max(begin + 1, _to_microseconds(line, line.duration), *(part.end for part in parts))
        who = self._tracks.agent_name(line)
        lane = self._tracks.thread_track(line, who, begin, end)
        self._add_slice(lane, _Slice(line.endpoint, "turn", begin, end), _request_args(line))
        for part in parts:
            self._add_slice(lane, part, {"call": part.call.id} if part.call is not None else {})
            if part.call is not None:
                self._call_slices[id(part.call)] = part
        self._add_token_counter(lane, line, who, end)
        return lane

    def _add_tool_wait(
        self, wait: ToolWait, tracks: tuple[ThreadTrack, ThreadTrack], flow: int
    ) -> None:
        """The time that the client spent on a call, and an arrow to where its result came."""
        begin, back = (
            _to_microseconds(wait.line, wait.dispatched),
            _to_microseconds(wait.result_line, 0.0),
        )
        end = max(begin + 1, back)
        who = self._tracks.agent_name(wait.line)
        lane = self._tracks.thread_track(wait.line, f"{who}: tools", begin, end)
        name = f"wait {wait.call.name or 'tool'}"
        self._add_slice(lane, _Slice(name, "tool wait", begin, end), {"call": wait.call.id})
        call = self._call_slices.get(id(wait.call))
        if call is not None and call.begin <= back:
            # It begins within the call's slice: the moment of its end is no longer in it.
            self._add_flow_event("s", tracks[0], min(call.end - 1, back), flow)
            self._add_flow_event("f", tracks[1], back, flow)

    def _add_slice(self, track: ThreadTrack, slice_: _Slice, args: Json) -> None:
        self.events.append(
            {
                "ph": "X",
                "name": slice_.name,
                "cat": slice_.kind,
                "pid": track.process,
                "tid": track.number,
                "ts": slice_.begin,
                "dur": slice_.end - slice_.begin,
                "args": args,
            }
        )

    def _add_flow_event(self, phase: str, track: ThreadTrack, at: int, flow: int) -> None:
        event: Json = {"ph": phase, "name": "result", "cat": "tool", "id": flow}
        event |= {"pid": track.process, "tid": track.number, "ts": at}
        self.events.append(event | {"bp": "e"} if phase == "f" else event)

    def _add_token_counter(self, track: ThreadTrack, line: TraceLine, agent: str, at: int) -> None:
        if line.usage is None:
            return
        cached = line.usage.cached_tokens
        counts = {
            "cached": cached,
            "prefilled": line.usage.input_tokens - cached,
            "output": line.usage.output_tokens,
        }
        event: Json = {"ph": "C", "name": f"tokens of {agent}", "pid": track.process, "ts": at}
        self.events.append(event | {"args": counts})


def _slices(line: TraceLine) -> Iterator[_Slice]:
    """The pieces of a request in the order of time. None begins before the last has ended."""
    last = free = _to_microseconds(line, 0.0)
    for part in sorted(_raw_slices(line), key=lambda part: (part.begin, part.end)):
        if part.end >= max(last, part.begin):
            begin = max(free, part.begin)
            last, free = part.end, max(begin + 1, part.end)
            yield replace(part, begin=begin, end=free)


def _raw_slices(line: TraceLine) -> Iterator[_Slice]:
    received = () if line.decoded is None else (("receive", 0.0, line.decoded),)
    for name, begin, end in (*received, *line.stages()):
        yield _Slice(name, name, _to_microseconds(line, begin), _to_microseconds(line, end))
    for thought in line.thoughts:
        yield _Slice(
            "reasoning",
            "reasoning",
            _to_microseconds(line, thought.begin),
            _to_microseconds(line, thought.end),
        )
    for call in line.calls:
        begin, end = _to_microseconds(line, call.begin), _to_microseconds(line, line.call_end(call))
        yield _Slice(call.name or "call", "tool call", begin, end, call)


def _to_microseconds(line: TraceLine, seconds: float) -> int:
    """A moment of a request in microseconds of the wall clock: whole ones keep their order."""
    return round((line.began + min(seconds, line.duration)) * 1e6)


def _request_args(line: TraceLine) -> Json:
    """What is shown of a request when it is chosen."""
    facts = {name: getattr(line, name) for name in _ARG_FIELDS}
    if line.usage is not None:
        facts |= {"input": line.usage.input_tokens, "output": line.usage.output_tokens}
        facts |= {"cached": line.usage.cached_tokens, "reasoning": line.usage.reasoning_tokens}
    if line.prefix is not None:
        facts |= {"prefix kept": line.prefix.common, "prefix lost": line.prefix.lost}
        facts |= {"prefix reason": line.prefix.reason, "reprefilled": line.reprefilled}
    facts |= {"migrations": line.migrations or None, "hung up": line.disconnected or None}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _metadata_event(kind: str, process: int, thread: int | None, **args: Any) -> Json:
    event: Json = {"ph": "M", "name": kind, "pid": process, "args": args}
    return event if thread is None else event | {"tid": thread}
