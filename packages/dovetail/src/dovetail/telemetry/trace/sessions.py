"""Where the requests of a trace are drawn: a process for each session, lanes for who spoke in it.

Slices of one lane may lie in each other and beside each other, but never overlap in part: what
does goes into a lane of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dovetail.telemetry.trace.line import TraceLine

NO_SESSION = "requests without a session"


@dataclass
class Lane:
    """A row of slices. `until` is where the last one ends."""

    process: int
    number: int
    name: str
    until: int = -(1 << 62)


@dataclass
class Process:
    """A session: its number and name."""

    number: int
    name: str


@dataclass
class Tracks:
    """Gives out processes and lanes. `parents` are the sessions that others belong to."""

    parents: Mapping[tuple[str, str], str]
    _processes: dict[tuple[str, str], Process] = field(default_factory=dict)
    _lanes: dict[tuple[int, str], list[Lane]] = field(default_factory=dict)

    def process(self, line: TraceLine) -> Process:
        """The session that a request belongs to: of a sub-agent, the one that called it."""
        root = self._root(line)
        key = (line.tenant, root)
        if key not in self._processes:
            of = f" ({line.tenant})" if line.tenant else ""
            named = f"session {root}{of}" if root else f"{NO_SESSION}{of}"
            self._processes[key] = Process(len(self._processes) + 1, named)
        return self._processes[key]

    def speaker(self, line: TraceLine) -> str:
        """Who spoke: the agent itself, or one of its sub-agents."""
        apart = line.session is not None and line.session != self._root(line)
        if not apart:
            return line.agent or "main"
        return f"{line.agent or 'sub-agent'} {line.session}"

    def lane(self, line: TraceLine, name: str, begin: int, end: int) -> Lane:
        """A lane of this name with room from `begin` to `end`. Ask in the order of time."""
        process = self.process(line).number
        lanes = self._lanes.setdefault((process, name), [])
        free = next((lane for lane in lanes if lane.until <= begin), None)
        if free is None:
            more = f" ({len(lanes) + 1})" if lanes else ""
            number = sum(map(len, self._lanes.values())) + 1
            free = Lane(process, number, f"{name}{more}")
            lanes.append(free)
        free.until = end
        return free

    def processes(self) -> Iterator[Process]:
        yield from self._processes.values()

    def lanes(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes

    def _root(self, line: TraceLine) -> str:
        """The session at the top, as far as it is known. A ring of parents ends where it closes."""
        root, seen = line.session or "", set[str]()
        while (parent := self.parents.get((line.tenant, root))) and root not in seen:
            seen.add(root)
            root = parent
        return root


def parents_of(lines: tuple[TraceLine, ...]) -> dict[tuple[str, str], str]:
    """The sessions whose parent is a session of the trace, too. An agent's id is none."""
    known = {(line.tenant, line.session) for line in lines}
    return {
        (line.tenant, line.session): line.parent
        for line in lines
        if line.session and line.parent
        if line.parent != line.session and (line.tenant, line.parent) in known
    }
