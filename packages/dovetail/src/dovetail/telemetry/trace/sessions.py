"""Where the requests of a trace are drawn: a process for each session, lanes for who spoke in it.

Slices of one lane may lie in each other and beside each other, but never overlap in part: what
does goes into a lane of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dovetail.telemetry.trace.reader import Trace
from dovetail.telemetry.trace.writer import TraceLine

NO_SESSION = "requests without a session"


@dataclass
class ThreadTrack:
    """A row of slices. `until` is where the last one ends."""

    process: int
    number: int
    name: str
    last_end: int = -(1 << 62)


@dataclass
class ProcessTrack:
    """A session: its number and name."""

    number: int
    name: str


@dataclass
class TrackAllocator:
    """Gives out processes and lanes. `parents` are the sessions that others belong to."""

    parents: Mapping[tuple[str, str], str]
    _process_tracks: dict[tuple[str, str], ProcessTrack] = field(default_factory=dict)
    _thread_tracks: dict[tuple[int, str], list[ThreadTrack]] = field(default_factory=dict)

    def process_track(self, line: TraceLine) -> ProcessTrack:
        """The session that a request belongs to: of a sub-agent, the one that called it."""
        root = self._root_session(line)
        key = (line.tenant, root)
        if key not in self._process_tracks:
            of = f" ({line.tenant})" if line.tenant else ""
            named = f"session {root}{of}" if root else f"{NO_SESSION}{of}"
            self._process_tracks[key] = ProcessTrack(len(self._process_tracks) + 1, named)
        return self._process_tracks[key]

    def agent_name(self, line: TraceLine) -> str:
        """Who spoke: the agent itself, or one of its sub-agents."""
        apart = line.session is not None and line.session != self._root_session(line)
        if not apart:
            return line.agent or "main"
        return f"{line.agent or 'sub-agent'} {line.session}"

    def thread_track(self, line: TraceLine, name: str, begin: int, end: int) -> ThreadTrack:
        """A lane of this name with room from `begin` to `end`. Ask in the order of time."""
        process = self.process_track(line).number
        lanes = self._thread_tracks.setdefault((process, name), [])
        free = next((lane for lane in lanes if lane.last_end <= begin), None)
        if free is None:
            more = f" ({len(lanes) + 1})" if lanes else ""
            number = sum(map(len, self._thread_tracks.values())) + 1
            free = ThreadTrack(process, number, f"{name}{more}")
            lanes.append(free)
        free.last_end = end
        return free

    def process_tracks(self) -> Iterator[ProcessTrack]:
        yield from self._process_tracks.values()

    def thread_tracks(self) -> Iterator[ThreadTrack]:
        for lanes in self._thread_tracks.values():
            yield from lanes

    def _root_session(self, line: TraceLine) -> str:
        """The session at the top, as far as it is known. A ring of parents ends where it closes."""
        root, seen = line.session or "", set[str]()
        while (parent := self.parents.get((line.tenant, root))) and root not in seen:
            seen.add(root)
            root = parent
        return root


def find_parent_sessions(lines: tuple[TraceLine, ...]) -> dict[tuple[str, str], str]:
    """The sessions whose parent is a session of the trace, too. An agent's id is none."""
    known = {(line.tenant, line.session) for line in lines}
    return {
        (line.tenant, line.session): line.parent
        for line in lines
        if line.session and line.parent
        if line.parent != line.session and (line.tenant, line.parent) in known
    }


@dataclass
class SessionSummary:
    """One session with its sub-agents. Times are in seconds, over all of its requests."""

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
    tool_wait_seconds: float = (
        0.0  # for tools: from a call's dispatch to the request with its result
    )

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


def summarize_sessions(trace: Trace) -> list[SessionSummary]:
    """The sessions in the order they began. Requests that no model was asked by are left out."""
    tracks = TrackAllocator(find_parent_sessions(trace.lines))
    found: dict[int, SessionSummary] = {}
    agents: dict[int, set[str]] = {}
    for line in trace.lines:
        if line.decoded is None:
            continue
        process = tracks.process_track(line)
        one = found.setdefault(process.number, SessionSummary(process.name))
        _add_request(one, line)
        agents.setdefault(process.number, set()).add(tracks.agent_name(line))
        one.agents = len(agents[process.number])
    for wait in trace.tool_waits():
        found[tracks.process_track(wait.line).number].tool_wait_seconds += wait.seconds
    return list(found.values())


def _add_request(summary: SessionSummary, line: TraceLine) -> None:
    summary.requests += 1
    summary.failed += line.status >= 400
    summary.calls += len(line.calls)
    summary.response_seconds += line.duration
    summary.reasoning_seconds += sum(thought.end - thought.begin for thought in line.thoughts)
    summary.reprefilled_tokens += line.reprefilled or 0
    if line.usage is not None:
        summary.input_tokens += line.usage.input_tokens
        summary.cached_tokens += line.usage.cached_tokens
        summary.output_tokens += line.usage.output_tokens
