"""The router: session homes, load accounting and the policy. It does no IO; time is passed in."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dovetail.routing.policy import (
    Policy,
    Reason,
    ReplicaSnapshot,
    RequestSnapshot,
    select_by_kv,
)
from dovetail.storage.lru import LruCache

MAX_SESSION_HOMES = 1 << 16
#: After this time, prefilled tokens and idle sessions count half.
LOAD_HALF_LIFE_SECONDS = 60.0
#: The expected output of requests without a prediction, until outputs were observed.
INITIAL_OUTPUT_TOKENS = 256.0
_OUTPUT_SMOOTHING = 0.05


class DecayingSum:
    """A sum whose summands lose half of their value in each half-life."""

    __slots__ = ("_time", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._time = 0.0

    def at(self, now: float) -> float:
        return self._value * decay(now - self._time)

    def add(self, amount: float, now: float) -> None:
        self._value = max(0.0, self.at(now) + amount)
        self._time = now


def decay(seconds: float) -> float:
    """Return the share of a value that is left after a time."""
    return 1.0 if seconds <= 0 else 0.5 ** (seconds / LOAD_HALF_LIFE_SECONDS)


class ReplicaLoad:
    """The load of one replica, from the requests of this process. `name`: see `ReplicaSnapshot`."""

    __slots__ = ("name", "output_tokens", "queued_tokens", "recent", "resident")

    def __init__(self) -> None:
        self.name = ""
        self.queued_tokens = 0
        self.output_tokens = 0
        self.recent = DecayingSum()
        self.resident = DecayingSum()

    def snapshot(
        self, index: int, overlap_tokens: int, now: float, *, in_backoff: bool
    ) -> ReplicaSnapshot:
        return ReplicaSnapshot(
            index,
            overlap_tokens,
            self.queued_tokens,
            self.output_tokens,
            self.recent.at(now),
            self.resident.at(now),
            in_backoff,
            self.name,
        )


@dataclass(slots=True)
class SessionHome:
    """The replica that holds the prefix of a session, and what it adds to its load."""

    replica: int
    tokens: int
    seen: float


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the router must know of a request.

    `expected_output_tokens`: the client's prediction (`osl`); None if there is none.
    `max_tokens`: the limit of the output.
    """

    prompt_tokens: int
    session: str | None = None
    expected_output_tokens: int | None = None
    max_tokens: int | None = None


class Assignment:
    """A request on a replica. It counts as load until `finish`.

    `replica`: the index of the replica.
    `reason`: why it was selected.
    """

    __slots__ = ("_load", "_output", "_queued", "_router", "reason", "replica")

    def __init__(
        self, router: "Router", replica: int, reason: Reason, queued: int, output: int
    ) -> None:
        self.replica = replica
        self.reason = reason
        self._router = router
        self._load = router.load(replica)
        self._queued = queued
        self._output = output
        self._load.queued_tokens += queued
        self._load.output_tokens += output

    def finish_prefill(self) -> None:
        """Count the prompt as prefilled. Called when the first token arrives."""
        self._load.queued_tokens -= self._queued
        self._queued = 0

    def finish(self, output_tokens: int | None = None) -> None:
        """Remove the request from the load. `output_tokens`: its length if it is complete."""
        self.finish_prefill()
        self._load.output_tokens -= self._output
        self._output = 0
        if output_tokens is not None:
            self._router.observe_output(output_tokens)


class Router:
    """Assigns requests to replicas.

    `consistent`: see `RequestSnapshot`.
    `decisions`: the number of decisions by reason.
    """

    def __init__(self, policy: Policy = select_by_kv, *, consistent: bool = False) -> None:
        self._policy = policy
        self._consistent = consistent
        self._homes: LruCache[str, SessionHome] = LruCache(MAX_SESSION_HOMES)
        self._loads: dict[int, ReplicaLoad] = {}
        self._average_output = INITIAL_OUTPUT_TOKENS
        self._sequence = 0
        self.decisions: Counter[Reason] = Counter()

    def load(self, replica: int) -> ReplicaLoad:
        """Return the load of a replica."""
        load = self._loads.get(replica)
        if load is None:
            load = self._loads[replica] = ReplicaLoad()
        return load

    def assign(
        self,
        request: RoutedRequest,
        available: Iterable[tuple[int, bool]],
        overlaps: Mapping[int, int] | None,
        now: float,
    ) -> Assignment:
        """Assign a request.

        `available`: the index of each replica that accepts requests, and whether it is in backoff.
        `overlaps`: the leading tokens of the prompt that each replica has cached; None if it is not
        known.
        """
        home = self._homes.peek(request.session) if request.session is not None else None
        if home is not None:  # the session itself is no reason to leave its home
            left = home.tokens * decay(now - home.seen)
            self.load(home.replica).resident.add(-left, now)
        cached = overlaps or {}
        decision = self._policy(
            RequestSnapshot(
                request.prompt_tokens,
                self._sequence,
                request.session,
                None if home is None else home.replica,
                self._consistent,
                overlaps is not None,
            ),
            [
                self.load(index).snapshot(index, cached.get(index, 0), now, in_backoff=backoff)
                for index, backoff in available
            ],
        )
        self._sequence += 1
        self.decisions[decision.reason] += 1
        missing = max(0, request.prompt_tokens - cached.get(decision.index, 0))
        self._place(request, decision.index, missing, now)
        return Assignment(
            self, decision.index, decision.reason, missing, self._expected_output(request)
        )

    def home(self, session: str | None) -> int | None:
        """Return the home of a session, if it has one."""
        home = self._homes.peek(session) if session is not None else None
        return None if home is None else home.replica

    def release_session(self, session: str, now: float) -> None:
        """Discard the home of a session that has ended."""
        home = self._homes.pop(session)
        if home is not None:
            left = home.tokens * decay(now - home.seen)
            self.load(home.replica).resident.add(-left, now)

    def forget(self, replica: int) -> None:
        """Discard the history of a replica, because it was restarted or removed."""
        load = self._loads.get(replica)
        if load is not None:  # its active requests still finish
            load.recent, load.resident = DecayingSum(), DecayingSum()

    def observe_output(self, tokens: int) -> None:
        """Learn the length of outputs, for requests without a prediction."""
        self._average_output += _OUTPUT_SMOOTHING * (tokens - self._average_output)

    def _place(self, request: RoutedRequest, replica: int, missing: int, now: float) -> None:
        load = self.load(replica)
        load.recent.add(missing, now)
        load.resident.add(request.prompt_tokens, now)
        if request.session is not None:
            self._homes.put(request.session, SessionHome(replica, request.prompt_tokens, now))

    def _expected_output(self, request: RoutedRequest) -> int:
        expected = request.expected_output_tokens
        tokens = round(self._average_output) if expected is None else expected
        return tokens if request.max_tokens is None else min(tokens, request.max_tokens)
