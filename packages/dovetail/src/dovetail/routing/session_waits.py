"""The turns that wait for one replica, and when they may take the places of other sessions."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from math import inf
from operator import add

from dovetail.routing.prefill_rate import PrefillRate
from dovetail.routing.session_places import SessionPlaces
from dovetail.routing.session_turns import SchedulingLimits, Turn

#: No turn takes the place of a session that is expected back before it has waited this long.
MIN_ROTATION_SECONDS = 30.0
#: No other turn runs for this time after a turn has become overdue, until it runs.
RESERVED_SECONDS = 10.0
#: Turns of tenants below their share take places after this part of that time.
FAIR_ROTATION_PART = 0.25


class WaitingTurns:
    """The turns that wait.

    A turn is overdue when it has waited so long that it may take the place of a session that is
    expected back. That takes less time for tenants below their share of the KV cache.

    `idle_since`: since when no turn runs; None while one does.
    """

    def __init__(
        self, limits: SchedulingLimits, prefill_rate: PrefillRate, places: SessionPlaces
    ) -> None:
        self._limits = limits
        self._prefill_rate = prefill_rate
        self._places = places
        self._turns: dict[int, Turn] = {}
        self._tokens = 0
        self.idle_since: float | None = None
        self._rotation_seconds = 0.0
        self.update()

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    def add(self, turn: Turn) -> None:
        self._turns[turn.number] = turn
        self._tokens += turn.arrival.own_tokens

    def remove(self, turn: Turn) -> None:
        del self._turns[turn.number]
        self._tokens -= turn.arrival.own_tokens
        self.update()

    def update(self) -> None:
        """Determine from when on turns are overdue: the later, the more prefill they cost."""
        limits = self._limits
        cost = limits.rotation_factor * self._prefill_rate.seconds(self._tokens)
        longest = min(limits.rotation_seconds, limits.max_wait_seconds)
        self._rotation_seconds = min(max(cost, MIN_ROTATION_SECONDS), longest)

    def is_overdue(self, turn: Turn, now: float) -> bool:
        """Return whether a turn has waited so long that it may take the place of a session."""
        rotation = self._rotation_seconds
        if now < turn.arrived_at + rotation * FAIR_ROTATION_PART:
            return False
        return now >= turn.arrived_at + rotation or self._is_below_share(turn.arrival.tenant)

    def has_idled(self, turn: Turn, now: float) -> bool:
        """Return whether nothing has run for the time in which the engine prefills a turn."""
        return self.idle_since is not None and now >= self._idle_deadline(turn, self.idle_since)

    def _idle_deadline(self, turn: Turn, idle_since: float) -> float:
        return idle_since + self._prefill_rate.seconds(turn.arrival.own_tokens)

    def next_deadline(self, now: float) -> float:
        """Return when to look at the waiting turns again without any other change.

        That is when the next one becomes overdue, has been so for long, must run, or when nothing
        has run for long.
        """
        self.update()
        overdue = [self._rotation_seconds * part for part in (1.0, FAIR_ROTATION_PART)]
        reserved = (wait + RESERVED_SECONDS for wait in overdue)
        arrivals = sorted(turn.arrived_at for turn in self)
        times: list[float] = []
        for wait in (self._limits.max_wait_seconds, *overdue, *reserved):
            passed = bisect_right(arrivals, now, key=partial(add, wait))
            times += (arrived_at + wait for arrived_at in arrivals[passed : passed + 1])
        if (idle_since := self.idle_since) is not None:
            times += (self._idle_deadline(turn, idle_since) for turn in self)
        return min((time for time in times if time > now), default=inf)

    def arrivals(self) -> dict[str, float]:
        """Return when the first waiting turn of each session arrived."""
        first: dict[str, float] = {}
        for turn in self:
            session = turn.arrival.session
            first[session] = min(turn.arrived_at, first.get(session, turn.arrived_at))
        return first

    def _is_below_share(self, tenant: str) -> bool:
        """Return whether a tenant has less than half of its share, and others have more."""
        tenants = self._places.tenants
        count = len(tenants) + (tenant not in tenants)
        return count > 1 and tenants.get(tenant, 0) * count * 2 < (self._places.capacity or 0)
