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

from dovetail.telemetry.record import Call
from dovetail.telemetry.trace.line import TraceLine
from dovetail.telemetry.trace.reader import Trace, Wait
from dovetail.telemetry.trace.sessions import Lane, Tracks, parents_of

Json = dict[str, Any]
_FACTS = ("id", "endpoint", "transport", "status", "model", "asked", "finish", "error", "replica")


def timeline(trace: Trace) -> Json:
    """The whole timeline, ready to be written as JSON."""
    drawn = _Drawing(trace)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"source": "dovetail", "requests": len(trace.lines)},
        "traceEvents": [*drawn.names(), *drawn.events],
    }


@dataclass(frozen=True)
class _Part:
    """A piece of a request, in microseconds of the wall clock."""

    name: str
    kind: str
    begin: int
    end: int
    call: Call | None = None


class _Drawing:
    """The events of a trace: requests in the order they began, then what lies between them."""

    def __init__(self, trace: Trace) -> None:
        self.events: list[Json] = []
        self._calls: dict[int, _Part] = {}
        self._tracks = Tracks(parents_of(trace.lines))
        self._lanes = [self._request(line) for line in trace.lines]
        places = {id(line): at for at, line in enumerate(trace.lines)}
        for flow, wait in enumerate(trace.waits(), 1):
            lanes = (self._lanes[places[id(wait.line)]], self._lanes[places[id(wait.later)]])
            self._wait(wait, lanes, flow)

    def names(self) -> Iterator[Json]:
        """What processes and threads are called, and the order they stand in."""
        for process in self._tracks.processes():
            yield _name("process_name", process.number, None, name=process.name)
            order = process.number
            yield _name("process_sort_index", process.number, None, sort_index=order)
        for lane in self._tracks.lanes():
            yield _name("thread_name", lane.process, lane.number, name=lane.name)
            yield _name("thread_sort_index", lane.process, lane.number, sort_index=lane.number)

    def _request(self, line: TraceLine) -> Lane:
        parts = list(_parts(line))
        begin = _at(line, 0.0)
        end = max(begin + 1, _at(line, line.duration), *(part.end for part in parts))
        who = self._tracks.speaker(line)
        lane = self._tracks.lane(line, who, begin, end)
        self._slice(lane, _Part(line.endpoint, "turn", begin, end), _facts(line))
        for part in parts:
            self._slice(lane, part, {"call": part.call.id} if part.call is not None else {})
            if part.call is not None:
                self._calls[id(part.call)] = part
        self._count(lane, line, who, end)
        return lane

    def _wait(self, wait: Wait, lanes: tuple[Lane, Lane], flow: int) -> None:
        """The time that the client spent on a call, and an arrow to where its result came."""
        begin, back = _at(wait.line, wait.dispatched), _at(wait.later, 0.0)
        end = max(begin + 1, back)
        who = self._tracks.speaker(wait.line)
        lane = self._tracks.lane(wait.line, f"{who}: tools", begin, end)
        name = f"wait {wait.call.name or 'tool'}"
        self._slice(lane, _Part(name, "tool wait", begin, end), {"call": wait.call.id})
        call = self._calls.get(id(wait.call))
        if call is not None and call.begin <= back:
            # It begins within the call's slice: the moment of its end is no longer in it.
            self._arrow("s", lanes[0], min(call.end - 1, back), flow)
            self._arrow("f", lanes[1], back, flow)

    def _slice(self, lane: Lane, part: _Part, facts: Json) -> None:
        self.events.append(
            {
                "ph": "X",
                "name": part.name,
                "cat": part.kind,
                "pid": lane.process,
                "tid": lane.number,
                "ts": part.begin,
                "dur": part.end - part.begin,
                "args": facts,
            }
        )

    def _arrow(self, phase: str, lane: Lane, at: int, flow: int) -> None:
        event: Json = {"ph": phase, "name": "result", "cat": "tool", "id": flow}
        event |= {"pid": lane.process, "tid": lane.number, "ts": at}
        self.events.append(event | {"bp": "e"} if phase == "f" else event)

    def _count(self, lane: Lane, line: TraceLine, who: str, at: int) -> None:
        if line.usage is None:
            return
        cached = line.usage.cached_tokens
        counts = {
            "cached": cached,
            "prefilled": line.usage.input_tokens - cached,
            "output": line.usage.output_tokens,
        }
        event: Json = {"ph": "C", "name": f"tokens of {who}", "pid": lane.process, "ts": at}
        self.events.append(event | {"args": counts})


def _parts(line: TraceLine) -> Iterator[_Part]:
    """The pieces of a request in the order of time. None begins before the last has ended."""
    last = free = _at(line, 0.0)
    for part in sorted(_spans(line), key=lambda part: (part.begin, part.end)):
        if part.end >= max(last, part.begin):
            begin = max(free, part.begin)
            last, free = part.end, max(begin + 1, part.end)
            yield replace(part, begin=begin, end=free)


def _spans(line: TraceLine) -> Iterator[_Part]:
    received = () if line.decoded is None else (("receive", 0.0, line.decoded),)
    for name, begin, end in (*received, *line.stages()):
        yield _Part(name, name, _at(line, begin), _at(line, end))
    for thought in line.thoughts:
        yield _Part("reasoning", "reasoning", _at(line, thought.begin), _at(line, thought.end))
    for call in line.calls:
        begin, end = _at(line, call.begin), _at(line, line.end_of(call))
        yield _Part(call.name or "call", "tool call", begin, end, call)


def _at(line: TraceLine, seconds: float) -> int:
    """A moment of a request in microseconds of the wall clock: whole ones keep their order."""
    return round((line.began + min(seconds, line.duration)) * 1e6)


def _facts(line: TraceLine) -> Json:
    """What is shown of a request when it is chosen."""
    facts = {name: getattr(line, name) for name in _FACTS}
    if line.usage is not None:
        facts |= {"input": line.usage.input_tokens, "output": line.usage.output_tokens}
        facts |= {"cached": line.usage.cached_tokens, "reasoning": line.usage.reasoning_tokens}
    if line.prefix is not None:
        facts |= {"prefix kept": line.prefix.common, "prefix lost": line.prefix.lost}
        facts |= {"prefix reason": line.prefix.reason, "reprefilled": line.reprefilled}
    facts |= {"migrations": line.migrations or None, "hung up": line.disconnected or None}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _name(kind: str, process: int, thread: int | None, **args: Any) -> Json:
    event: Json = {"ph": "M", "name": kind, "pid": process, "args": args}
    return event if thread is None else event | {"tid": thread}
