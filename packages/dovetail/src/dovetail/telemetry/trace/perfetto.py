"""Convert a trace to a timeline: JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

A session is a process; its agent and sub-agents are threads. Every request is a slice, with nested
slices for its stages and its output. The time between a call and the request with its result, while
the client runs the tool, is a separate slice with an arrow from the call to that request. Only
complete events ("X") are used. Each lasts at least a microsecond, because Perfetto nests events
that begin at the same time into an event without duration.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dovetail.telemetry.record import RequestRecord, ToolCallRecord
from dovetail.telemetry.trace.reader import ToolWait, Trace
from dovetail.telemetry.trace.sessions import ThreadTrack, TrackAllocator, find_parent_sessions
from dovetail.telemetry.trace.writer import TraceLine

Json = dict[str, Any]
#: Displayed name -> field of the trace line.
_ARG_FIELDS = {
    "id": "id",
    "endpoint": "endpoint",
    "transport": "transport",
    "status": "status",
    "model": "model",
    "requested model": "requested_model",
    "finish": "finish",
    "error": "error",
    "replica": "replica",
}


def build_timeline(trace: Trace) -> Json:
    """Build the timeline as JSON values."""
    builder = _TimelineBuilder(trace)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"source": "dovetail", "requests": len(trace.lines)},
        "traceEvents": [*builder.metadata_events(), *builder.events],
    }


@dataclass(frozen=True)
class _Slice:
    """A part of a request, in microseconds of the wall clock."""

    name: str
    kind: str
    begin: int
    end: int
    call: ToolCallRecord | None = None


class _TimelineBuilder:
    """Builds the events of a trace: requests in order of their start, then tool waits."""

    def __init__(self, trace: Trace) -> None:
        self.events: list[Json] = []
        self._call_slices: dict[int, _Slice] = {}
        self._tracks = TrackAllocator(find_parent_sessions(trace.lines))
        self._tracks_by_line = [self._add_request(line) for line in trace.lines]
        positions = {id(line): at for at, line in enumerate(trace.lines)}
        for flow, wait in enumerate(trace.tool_waits(), 1):
            tracks = (
                self._tracks_by_line[positions[id(wait.line)]],
                self._tracks_by_line[positions[id(wait.result_line)]],
            )
            self._add_tool_wait(wait, tracks, flow)

    def metadata_events(self) -> Iterator[Json]:
        """Yield the names and the order of processes and threads."""
        for process in self._tracks.process_tracks():
            yield _metadata_event("process_name", process.number, None, name=process.name)
            order = process.number
            yield _metadata_event("process_sort_index", process.number, None, sort_index=order)
        for track in self._tracks.thread_tracks():
            yield _metadata_event("thread_name", track.process, track.number, name=track.name)
            yield _metadata_event(
                "thread_sort_index", track.process, track.number, sort_index=track.number
            )

    def _add_request(self, line: TraceLine) -> ThreadTrack:
        parts = list(_slices(line))
        begin = _to_microseconds(line, 0.0)
        end = max(begin + 1, _to_microseconds(line, line.duration), *(part.end for part in parts))
        agent = self._tracks.agent_name(line)
        track = self._tracks.thread_track(line, agent, begin, end)
        self._add_slice(track, _Slice(line.endpoint, "turn", begin, end), _request_args(line))
        for part in parts:
            self._add_slice(track, part, {"call": part.call.id} if part.call is not None else {})
            if part.call is not None:
                self._call_slices[id(part.call)] = part
        self._add_token_counter(track, line, agent, end)
        return track

    def _add_tool_wait(
        self, wait: ToolWait, tracks: tuple[ThreadTrack, ThreadTrack], flow: int
    ) -> None:
        """Add a slice for a tool wait, and an arrow from call to the request with the result."""
        begin, returned = (
            _to_microseconds(wait.line, wait.dispatched),
            _to_microseconds(wait.result_line, 0.0),
        )
        end = max(begin + 1, returned)
        agent = self._tracks.agent_name(wait.line)
        track = self._tracks.thread_track(wait.line, f"{agent}: tools", begin, end)
        name = f"wait {wait.call.name or 'tool'}"
        self._add_slice(track, _Slice(name, "tool wait", begin, end), {"call": wait.call.id})
        call = self._call_slices.get(id(wait.call))
        if call is not None and call.begin <= returned:
            # The arrow must begin inside the slice of the call, which excludes its end.
            self._add_flow_event("s", tracks[0], min(call.end - 1, returned), flow)
            self._add_flow_event("f", tracks[1], returned, flow)

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
    """Yield the parts of a request in order of time, without overlaps."""
    last = next_begin = _to_microseconds(line, 0.0)
    for part in sorted(_raw_slices(line), key=lambda part: (part.begin, part.end)):
        if part.end >= max(last, part.begin):
            begin = max(next_begin, part.begin)
            last, next_begin = part.end, max(begin + 1, part.end)
            yield replace(part, begin=begin, end=next_begin)


def _raw_slices(line: TraceLine) -> Iterator[_Slice]:
    received = () if line.decoded is None else (("receive", 0.0, line.decoded),)
    for name, begin, end in (*received, *line.stages()):
        yield _Slice(name, name, _to_microseconds(line, begin), _to_microseconds(line, end))
    for span in line.reasoning_spans:
        yield _Slice(
            "reasoning",
            "reasoning",
            _to_microseconds(line, span.begin),
            _to_microseconds(line, span.end),
        )
    for call in line.calls:
        begin, end = _to_microseconds(line, call.begin), _to_microseconds(line, line.call_end(call))
        yield _Slice(call.name or "call", "tool call", begin, end, call)


def _to_microseconds(line: RequestRecord, seconds: float) -> int:
    """Return a wall clock time in microseconds, as an integer to preserve the order."""
    return round((line.began + min(seconds, line.duration)) * 1e6)


def _request_args(line: TraceLine) -> Json:
    """Return the details of a request that Perfetto shows when it is selected."""
    facts = {name: getattr(line, field) for name, field in _ARG_FIELDS.items()}
    if line.usage is not None:
        facts |= {"input": line.usage.input_tokens, "output": line.usage.output_tokens}
        facts |= {"cached": line.usage.cached_tokens, "reasoning": line.usage.reasoning_tokens}
    if line.prefix is not None:
        facts |= {"prefix kept": line.prefix.common, "prefix lost": line.prefix.lost}
        facts |= {"prefix reason": line.prefix.reason, "reprefilled": line.reprefilled}
    facts |= {"migrations": line.migrations or None, "disconnected": line.disconnected or None}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _metadata_event(kind: str, process: int, thread: int | None, **args: Any) -> Json:
    event: Json = {"ph": "M", "name": kind, "pid": process, "args": args}
    return event if thread is None else event | {"tid": thread}
