"""A trace in a few numbers for each session."""

from dataclasses import dataclass

from dovetail.telemetry.trace.line import TraceLine
from dovetail.telemetry.trace.reader import Trace
from dovetail.telemetry.trace.sessions import Tracks, parents_of


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
    reprefilled: int = 0
    answering: float = 0.0
    thinking: float = 0.0
    waiting: float = 0.0  # for tools: from a call's dispatch to the request with its result

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


def summarize(trace: Trace) -> list[SessionSummary]:
    """The sessions in the order they began. Requests that no model was asked by are left out."""
    tracks = Tracks(parents_of(trace.lines))
    found: dict[int, SessionSummary] = {}
    agents: dict[int, set[str]] = {}
    for line in trace.lines:
        if line.decoded is None:
            continue
        process = tracks.process(line)
        one = found.setdefault(process.number, SessionSummary(process.name))
        _add(one, line)
        agents.setdefault(process.number, set()).add(tracks.speaker(line))
        one.agents = len(agents[process.number])
    for wait in trace.waits():
        found[tracks.process(wait.line).number].waiting += wait.seconds
    return list(found.values())


def _add(one: SessionSummary, line: TraceLine) -> None:
    one.requests += 1
    one.failed += line.status >= 400
    one.calls += len(line.calls)
    one.answering += line.duration
    one.thinking += sum(thought.end - thought.begin for thought in line.thoughts)
    one.reprefilled += line.reprefilled or 0
    if line.usage is not None:
        one.input_tokens += line.usage.input_tokens
        one.cached_tokens += line.usage.cached_tokens
        one.output_tokens += line.usage.output_tokens
