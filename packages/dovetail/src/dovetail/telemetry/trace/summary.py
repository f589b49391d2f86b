"""A trace in a few numbers for each session."""

from dataclasses import dataclass

from dovetail.telemetry.trace.line import TraceLine
from dovetail.telemetry.trace.reader import Trace
from dovetail.telemetry.trace.sessions import TrackAllocator, find_parent_sessions


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
