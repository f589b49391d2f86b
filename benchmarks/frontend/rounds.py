"""Run each case on each server alternately, in several rounds, and record the best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.frontend import client
from benchmarks.frontend.cases import LENGTHS, Case
from benchmarks.frontend.load import Cost, StreamRequest, whole, wrk
from benchmarks.frontend.parts import cue
from benchmarks.frontend.requests import APIS
from benchmarks.frontend.servers import Frontend

FEW = 4  # streams of long calls
TOKENS = 200_000  # of long calls per round and length: short calls run more often
SLACK = 0.2  # by which a call may be shorter than its nominal length
SAMPLE = 120  # tokens of each stream whose events are counted

Key = tuple[str, str, str]  # server, workload, API


@dataclass
class Costs:
    """All measurements. The best counts, since disturbances only increase the cost."""

    runs: dict[Key, list[Cost]] = field(default_factory=dict)
    joined: dict[Key, float] = field(default_factory=dict)

    def add(self, key: Key, cost: Cost) -> None:
        self.runs.setdefault(key, []).append(cost)
        child = f", of these {cost.child_us:.1f} in the engine's process" if cost.child_us else ""
        system = cost.spent.system / max(cost.spent.total, 1e-9)
        line = f"  {' '.join(key):48} {cost.us:7.1f} µs/token ({system:.0%} system){child}"
        line += f", {cost.tokens} tokens"
        print(line, flush=True)

    def best(self, server: str, workload: str, api: str) -> Cost | None:
        return min(
            self.runs.get((server, workload, api), ()), key=lambda cost: cost.us, default=None
        )

    def ratio(self, server: str, other: str, workload: str, api: str) -> float | None:
        """Return the cost per token on a server, relative to another."""
        ours, theirs = self.best(server, workload, api), self.best(other, workload, api)
        return ours.us / theirs.us if ours and theirs else None

    def request_ratio(self, server: str, other: str, workload: str, api: str) -> float | None:
        """Return the cost per response on a server, relative to another."""
        runs = [self.runs.get((name, workload, api), ()) for name in (server, other)]
        best = [min((c.request_us for c in each if c.responses), default=0.0) for each in runs]
        return best[0] / best[1] if all(best) else None

    def growth(self, server: str, api: str) -> float | None:
        """Return the cost of a token at the end of the longest call, relative to the shortest.

        Only tokens beyond a shorter call count, to exclude the cost of the request itself.
        """
        best = [self.best(server, f"whole call {length}", api) for length in LENGTHS]
        measured = [cost for cost in best if cost is not None]
        if len(measured) < len(LENGTHS):
            return None
        one, two, *_, last_but_one, last = measured
        return last.beyond(last_but_one) / two.beyond(one)


def drive(
    costs: Costs, frontends: Sequence[Frontend], cases: Iterable[Case], rounds: int, scale: float
) -> None:
    """Run cases with wrk for their duration, multiplied by `scale`."""
    for case in cases:
        for _ in range(rounds):
            for api in case.apis:
                for frontend in frontends:
                    seconds = max(1, round(case.seconds * scale))
                    request = StreamRequest(api, cue(case.part))
                    key = (frontend.name, case.name, api)
                    costs.add(key, wrk(frontend, request, case.streams, seconds))


def lengths(costs: Costs, frontends: Sequence[Frontend], rounds: int, scale: float) -> None:
    """Measure calls of growing length, all read to their ends."""
    for _ in range(rounds):
        for api in APIS:
            for length in LENGTHS:
                for frontend in frontends:
                    times = max(1, round(TOKENS * scale / length / FEW))
                    request = StreamRequest(api, cue(f"call-{length}"))
                    key = (frontend.name, f"whole call {length}", api)
                    cost = whole(frontend, request, FEW, times)
                    if cost.length < (1 - SLACK) * length:
                        raise RuntimeError(
                            f"{frontend.name} truncated a call at {cost.length:.0f} tokens"
                        )
                    costs.add(key, cost)


def frames(costs: Costs, frontends: Iterable[Frontend], cases: Iterable[Case]) -> None:
    """Return the number of tokens per event, from a few streams under the same load."""
    for case in cases:
        for api in case.apis:
            for frontend in frontends:
                before = frontend.await_idle()
                request = StreamRequest(api, cue(case.part), SAMPLE)
                seen = client.run(request.plan(frontend.port, case.streams))
                tokens = frontend.await_idle() - before
                events = sum(sum(one.frames) for one in seen)
                costs.joined[frontend.name, case.name, api] = tokens / max(1, events)
