"""The results of one run of the benchmark."""

from dataclasses import dataclass, field

from benchmarks.frontend.latency import Late
from benchmarks.frontend.many_streams import Many
from benchmarks.frontend.rounds import Costs

ENGINE = "engine alone"


@dataclass
class Findings:
    """Cost per token, and by server and API: latency, the first argument, many streams.

    `cold`: milliseconds of CPU time of a new conversation with a long history.
    """

    servers: list[str]
    costs: Costs = field(default_factory=Costs)
    late: dict[tuple[str, str], Late] = field(default_factory=dict)
    behind: dict[tuple[str, str], int] = field(default_factory=dict)
    cold: dict[tuple[str, str], float] = field(default_factory=dict)
    slow: list[tuple[str, str, Many]] = field(default_factory=list)
    unread: list[tuple[str, str, Many]] = field(default_factory=list)

    def note_late(self, server: str, api: str, late: Late) -> None:
        """Return the best measurement: the one with the lowest p99."""
        known = self.late.get((server, api))
        if known is None or late.p99 < known.p99:
            self.late[server, api] = late

    def added(self, server: str, api: str) -> float | None:
        """Return milliseconds that a frontend adds to the p99 of the time between tokens."""
        engine, late = self.late.get((ENGINE, "completions")), self.late.get((server, api))
        return late.p99 - engine.p99 if engine and late else None
