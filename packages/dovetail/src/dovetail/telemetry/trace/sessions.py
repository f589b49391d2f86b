"""Summarize sessions, and assign the requests of a trace to tracks of a timeline.

A session is a process track and its agents are thread tracks. Slices of one thread track may be
nested or consecutive, but must not overlap partially: overlapping slices get separate tracks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.telemetry.record import RequestRecord
from dovetail.telemetry.trace.reader import Trace

NO_SESSION = "requests without a session"


@dataclass
class ThreadTrack:
    """A row of slices. `last_end` is the end of the last slice."""

    process: int
    number: int
    name: str
    last_end: int = -(1 << 62)


@dataclass
class ProcessTrack:
    """The number and the name of a session."""

    number: int
    name: str


@dataclass
class TrackAllocator:
    """Allocates tracks. `parents` maps sessions to their parent sessions."""

    parents: Mapping[tuple[str, str], str]
    _process_tracks: dict[tuple[str, str], ProcessTrack] = field(default_factory=dict)
    _thread_tracks: dict[tuple[int, str], list[ThreadTrack]] = field(default_factory=dict)

    def process_track(self, line: RequestRecord) -> ProcessTrack:
        """Return the track of the root session of a request."""
        root = self._root_session(line)
        key = (line.tenant, root)
        if key not in self._process_tracks:
            suffix = f" ({line.tenant})" if line.tenant else ""
            name = f"session {root}{suffix}" if root else f"{NO_SESSION}{suffix}"
            self._process_tracks[key] = ProcessTrack(len(self._process_tracks) + 1, name)
        return self._process_tracks[key]

    def agent_name(self, line: RequestRecord) -> str:
        """Return the name of the agent or sub-agent that sent a request."""
        is_subagent = line.session is not None and line.session != self._root_session(line)
        if not is_subagent:
            return line.agent or "main"
        return f"{line.agent or 'sub-agent'} {line.session}"

    def thread_track(self, line: RequestRecord, name: str, begin: int, end: int) -> ThreadTrack:
        """Return a track of this name that is free from `begin` on. Call it in order of time."""
        process = self.process_track(line).number
        tracks = self._thread_tracks.setdefault((process, name), [])
        free = next((track for track in tracks if track.last_end <= begin), None)
        if free is None:
            suffix = f" ({len(tracks) + 1})" if tracks else ""
            number = sum(map(len, self._thread_tracks.values())) + 1
            free = ThreadTrack(process, number, f"{name}{suffix}")
            tracks.append(free)
        free.last_end = end
        return free

    def process_tracks(self) -> Iterator[ProcessTrack]:
        yield from self._process_tracks.values()

    def thread_tracks(self) -> Iterator[ThreadTrack]:
        for tracks in self._thread_tracks.values():
            yield from tracks

    def _root_session(self, line: RequestRecord) -> str:
        """Return the root session, as far as it is known. A cycle of parents ends the walk."""
        root, seen = line.session or "", set[str]()
        while (parent := self.parents.get((line.tenant, root))) and root not in seen:
            seen.add(root)
            root = parent
        return root


def find_parent_sessions(lines: Sequence[RequestRecord]) -> dict[tuple[str, str], str]:
    """Return the parents that are sessions of the trace. Other parents are ids of agents."""
    known = {(line.tenant, line.session) for line in lines}
    return {
        (line.tenant, line.session): line.parent
        for line in lines
        if line.session and line.parent
        if line.parent != line.session and (line.tenant, line.parent) in known
    }


@dataclass
class SessionSummary:
    """One session with its sub-agents. Times are totals over its requests, in seconds."""

    name: str
    requests: int = 0
    failed: int = 0
    agents: int = 0
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reprefilled_tokens: int = 0
    response_seconds: float = 0.0
    reasoning_seconds: float = 0.0
    tool_wait_seconds: float = 0.0  # from the dispatch of a call to the request with its result

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


def summarize_sessions(trace: Trace) -> list[SessionSummary]:
    """Summarize the sessions in order of their start, without requests that were not decoded."""
    tracks = TrackAllocator(find_parent_sessions(trace.lines))
    summaries: dict[int, SessionSummary] = {}
    agents: dict[int, set[str]] = {}
    for line in trace.lines:
        if line.decoded is None:
            continue
        process = tracks.process_track(line)
        summary = summaries.setdefault(process.number, SessionSummary(process.name))
        _add_request(summary, line)
        agents.setdefault(process.number, set()).add(tracks.agent_name(line))
        summary.agents = len(agents[process.number])
    for wait in trace.tool_waits():
        summaries[tracks.process_track(wait.line).number].tool_wait_seconds += wait.seconds
    return list(summaries.values())


def _add_request(summary: SessionSummary, line: RequestRecord) -> None:
    summary.requests += 1
    summary.failed += line.status >= 400
    summary.calls += len(line.calls)
    summary.response_seconds += line.duration
    summary.reasoning_seconds += sum(span.end - span.begin for span in line.reasoning_spans)
    summary.reprefilled_tokens += line.reprefilled or 0
    if line.usage is not None:
        summary.input_tokens += line.usage.input_tokens
        summary.cached_tokens += line.usage.cached_tokens
        summary.output_tokens += line.usage.output_tokens
