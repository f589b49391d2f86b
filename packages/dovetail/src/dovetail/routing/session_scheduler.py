"""Schedule sessions instead of requests while the KV cache of a replica is short.

If more sessions are active than fit into the KV cache, each turn evicts the prefix of another
session and prefills its own again. The scheduler admits only as many sessions as fit; the others
wait before a turn, never inside one. A session keeps its place between turns while it is expected
back sooner than the engine could prefill it again: an engine that prefills fast is not kept idle. A
session without a place runs at the latest after `max_wait_seconds`.

While hardly any session returns before its place is given up, waiting saves no prefill. Scheduling
is suspended then: no turn waits.

The scheduler is a pure state machine. It neither waits nor reads a clock: call `admit` after each
change and at `next_deadline`, and send the turns that it returns to the engine.
"""

from collections.abc import Iterator
from itertools import count, takewhile
from math import inf

from dovetail.routing.prefill_rate import PrefillRate
from dovetail.routing.session_holds import HeldReturns, HoldTimes
from dovetail.routing.session_places import KnownSessions, PlacedSession, SessionPlaces
from dovetail.routing.session_turns import (
    SchedulerCounters,
    SchedulingLimits,
    SessionState,
    Turn,
    TurnArrival,
    TurnEnd,
)
from dovetail.routing.session_waits import RESERVED_SECONDS, WaitingTurns
from dovetail.routing.tool_times import ToolTimes

#: After so many turns without room, those that need places of others wait for the next call.
MAX_REJECTED_TURNS, MAX_REJECTED_WHILE_IDLE = 16, 128

_Rank = tuple[float, ...]


class SessionScheduler:
    """Admits the turns of sessions to one replica.

    `capacity_tokens`: the KV cache of the replica; None if it is not known: all turns run at once.
    `tool_times`: the learned durations, which the schedulers of several replicas may share.
    `prefill_rate`: how fast the engine prefills; observe it there.
    """

    def __init__(
        self,
        capacity_tokens: int | None,
        limits: SchedulingLimits | None = None,
        tool_times: ToolTimes | None = None,
    ) -> None:
        self.limits = limits or SchedulingLimits()
        self.tool_times = ToolTimes() if tool_times is None else tool_times
        self.prefill_rate = PrefillRate(self.limits.prefill_tokens_per_second)
        self.counters = SchedulerCounters()
        self.running_turns = 0
        self._places = SessionPlaces(capacity_tokens)
        self._sessions = KnownSessions(self._places)
        self._waiting = WaitingTurns(self.limits, self.prefill_rate, self._places)
        self._holds = HoldTimes(self.limits, self.tool_times, self.prefill_rate)
        self._returns = HeldReturns()
        self._numbers = count()
        self._is_draining = False

    @property
    def capacity_tokens(self) -> int | None:
        return self._places.capacity

    @property
    def used_tokens(self) -> int:
        """The tokens of all places. More than the capacity while turns run without room."""
        return self._places.used

    @property
    def waiting_turns(self) -> int:
        return len(self._waiting)

    @property
    def is_suspended(self) -> bool:
        """Whether turns run as they arrive, because waiting would save no prefill."""
        return self._returns.is_useless

    def has_turns(self, session: str) -> bool:
        """Return whether turns of a session wait or run."""
        known = self._sessions.get(session)
        return known is not None and known.has_turns

    def has_place(self, session: str) -> bool:
        """Return whether a session has a place, or is running."""
        known = self._sessions.get(session)
        return known is not None and (known.tokens > 0 or known.running > 0)

    def arrive(
        self,
        arrival: TurnArrival,
        now: float,
        *,
        arrived_at: float | None = None,
        is_started: bool = False,
    ) -> Turn:
        """Add a turn. It runs if no turn waits and there is room; otherwise it waits.

        Call `admit` even if it runs: with its return, scheduling may be suspended.
        `arrived_at`: since when it waits, if it has waited before.
        `is_started`: it has begun on another replica, and continues here without waiting.
        """
        session = self._sessions.find(arrival, now)
        turn = Turn(arrival, next(self._numbers), now if arrived_at is None else arrived_at)
        if session.idle_since is not None:
            turn.predicted_seconds = session.predicted_seconds
            turn.actual_seconds = now - session.idle_since
            self.tool_times.observe(session.tool_keys, turn.actual_seconds, now)
            if self.prefill_rate.is_measured and (self._waiting or self.is_suspended):
                self._returns.observe(arrival.own_tokens, is_held=now <= session.hold_until)
            session.idle_since = None
        session.waiting += 1
        session.hold_until = inf  # the place is kept while the turn waits
        if is_started:
            self._try_admit(turn, now, is_started=True)
        elif not self._runs_at_once(turn, now):
            self._waiting.add(turn)
        return turn

    def admit(self, now: float) -> list[Turn]:
        """Admit the waiting turns for which there is room, and return them.

        While an overdue turn waits, what becomes free is for it, however small the others are. If
        it does not run soon, sessions that have a place and need none of others continue: the turn
        waits for long ones, and stopping all others would not help it.
        """
        admitted: list[Turn] = []
        while batch := self._admit_once(now):
            admitted += batch
        return admitted

    def _admit_once(self, now: float) -> list[Turn]:
        """Look at each waiting turn once. Others may be overdue when fewer wait."""
        admitted: list[Turn] = []
        self._waiting.update()
        rejected: list[tuple[float, int]] = []
        is_reserved = False
        for turn in sorted(self._waiting, key=lambda one: self._rank(one, now)):
            session = self._sessions[turn.arrival.session]
            is_overdue = self._waiting.is_overdue(turn, now)
            placement = inf if session.placement is None else session.placement
            needed = self._places.tokens_needed(session, turn.arrival)
            if self._missing_tokens(session, needed, is_overdue=is_overdue) > 0:
                can_take = is_overdue or bool(session.callers)
                if is_reserved or (not can_take and self._is_covered(rejected, placement, needed)):
                    continue
            elif is_reserved and session.placement is None:
                continue
            if self._try_admit(turn, now):
                self._waiting.remove(turn)
                admitted.append(turn)
            elif is_overdue:
                if not self._waiting.is_overdue(turn, now - RESERVED_SECONDS):
                    break
                is_reserved = True
            else:
                rejected.append((placement, needed))
        return admitted

    def finish(self, turn: Turn, end: TurnEnd, now: float) -> float:
        """Record the end of a running turn. Its session keeps its place or gives it up.

        Returns for how many seconds the place is held at most.
        """
        session = self._stop_turn(turn, now)
        if (begin := turn.started_at if turn.has_room else turn.first_token_at) is not None:
            self._holds.observe_turn(now - begin)
        if session.running:
            return 0.0
        session.idle_since = None if session.waiting else now
        session.tool_keys = end.tool_keys
        capacity = self.capacity_tokens or 0
        hold_seconds, session.predicted_seconds = self._holds.predict(end, capacity, now)
        if self._is_draining:
            hold_seconds = 0.0
        self._park(session, end.context_tokens, now + hold_seconds)
        return hold_seconds if session.placement is not None else 0.0

    def cancel(self, turn: Turn, now: float) -> None:
        """Remove a turn that waits, or record that a running one was interrupted."""
        if turn.state == "waiting":
            turn.state = "finished"
            self._waiting.remove(turn)
            session = self._sessions[turn.arrival.session]
            session.waiting -= 1
            if not session.has_turns:
                session.hold_until = now
        elif turn.state == "running":
            session = self._stop_turn(turn, now)
            if not session.running:
                self._park(session, turn.arrival.prompt_tokens, now)

    def release(self, session: str, now: float) -> None:
        """Free the place of a session that has ended, or that has a running turn, after it."""
        known = self._sessions.get(session)
        if known is None:
            return
        known.is_ended = True
        if not known.running:
            self._places.leave(known)
            if not known.waiting:
                del self._sessions[session]

    def move_away(self, session: str, now: float) -> None:
        """Record that a session continues on another replica: it is not expected back here."""
        known = self._sessions.get(session)
        if known is not None and not known.has_turns:
            known.idle_since = None
            known.hold_until = min(known.hold_until, now)

    def set_capacity(self, tokens: int | None) -> None:
        """Change the capacity. Running turns continue; places are lost if it is smaller."""
        self._places.capacity = tokens
        self._places.evict()

    def reset(self) -> None:
        """Record that the engine failed or was restarted: its KV cache is empty."""
        self._returns = HeldReturns()
        for session in list(self._places.parked()):
            self._places.leave(session)
        for session in self._sessions.values():
            if session.running:
                session.is_ended = True  # what its turns have cached is lost

    def drain(self, now: float) -> None:
        """Hold no places from now on: no session can return."""
        self._is_draining = True
        for session in self._places.parked():
            if not session.waiting:
                session.hold_until = min(session.hold_until, now)

    def next_deadline(self, now: float) -> float | None:
        """Return the next time at which `admit` has to be called without any other change."""
        if not self._waiting:
            return None
        times = [one.hold_until for one in self._places.parked()]
        times.append(self._waiting.next_deadline(now))
        return min((time for time in times if now < time < inf), default=None)

    def sessions(self, now: float) -> list[SessionState]:
        """Return the sessions that have a place or a turn."""
        arrived = self._waiting.arrivals()
        return [
            session.state(arrived.get(session.key), now)
            for session in self._sessions.values()
            if session.placement is not None or session.has_turns
        ]

    def can_run(self, arrival: TurnArrival, now: float) -> bool:
        """Return whether there is room for a turn while none waits, even if all are admitted."""
        session = self._sessions.get(arrival.session)
        session = session or PlacedSession(arrival.session, arrival.tenant, now)
        return self._places.can_fit(session, arrival, now) or not (
            self.running_turns or self._places.is_held(session, now)
        )

    def _runs_at_once(self, turn: Turn, now: float) -> bool:
        return (self.is_suspended or not self._waiting) and self._try_admit(turn, now)

    def _rank(self, turn: Turn, now: float) -> _Rank:
        """Return the sort key of a waiting turn: the lowest is admitted first."""
        if self._waiting.is_overdue(turn, now):
            return (0, turn.arrived_at, turn.number)
        arrival = turn.arrival
        session = self._sessions[arrival.session]
        is_cold = session.placement is None
        share = self._places.tenants.get(session.tenant, 0) if is_cold else 0
        order = (is_cold, share, session.first_seen, turn.number)
        return (1, -arrival.priority, arrival.background, *order)

    def _try_admit(self, turn: Turn, now: float, *, is_started: bool = False) -> bool:
        """Start a turn if there is room, taking the places of others where that is allowed."""
        arrival = turn.arrival
        session = self._sessions[arrival.session]
        if not self._make_room(turn, session, now):
            if not is_started and now < turn.arrived_at + self.limits.max_wait_seconds:
                return False
            turn.is_forced = not is_started
        self._places.occupy(session, arrival)
        self._places.evict()
        is_alone = self.running_turns == session.running
        capacity = self.capacity_tokens
        turn.has_room = is_alone or capacity is None or self.used_tokens <= capacity
        session.waiting -= 1
        session.running += 1
        turn.state = "running"
        turn.started_at = now
        self.running_turns += 1
        self._waiting.idle_since = None
        self.counters.admitted += 1
        self.counters.delayed += now > turn.arrived_at
        self.counters.forced += turn.is_forced
        return True

    def _is_covered(self, rejected: list[tuple[float, int]], placement: float, needed: int) -> bool:
        """Return whether to reject a turn without looking for places that it may take.

        `rejected`: the placements of other turns for which there was no room, and their needs. A
        turn that got its place later may take the places of fewer sessions.
        """
        limit = MAX_REJECTED_TURNS if self.running_turns else MAX_REJECTED_WHILE_IDLE
        if len(rejected) >= limit:
            return True
        return any(placement >= other and needed >= tokens for other, tokens in rejected)

    def _missing_tokens(self, session: PlacedSession, needed: int, *, is_overdue: bool) -> int:
        """Return how many tokens are not free of those that a turn needs; 0 or less if all are."""
        if session.running and not needed:
            return 0  # the place of the running turn is large enough
        capacity = self.capacity_tokens
        if capacity is None or self.is_suspended:
            return 0
        if self._waiting and session.placement is None and not is_overdue:
            capacity -= self._headroom(capacity, needed)
        return self._places.used + needed - capacity

    def _make_room(self, turn: Turn, session: PlacedSession, now: float) -> bool:
        """Take the places that a turn needs. Return whether it may run."""
        places = self._places
        needed = places.tokens_needed(session, turn.arrival)
        is_overdue = self._waiting.is_overdue(turn, now)
        missing = self._missing_tokens(session, needed, is_overdue=is_overdue)
        if missing <= 0:
            return True
        callers = self._sessions.callers(session, now)
        victims = [one for one in self._victims(turn, session, now) if one not in callers]
        victims += callers
        selected = places.select(victims, missing, turn.arrival.head)
        if selected is None:
            runs_others = self.running_turns > session.running
            if runs_others or len(victims) < sum(one is not session for one in places.parked()):
                return False
            selected = victims  # more than the KV cache: the session runs alone
        for victim in selected:
            self.counters.yielded += victim.hold_until <= now
            self.counters.rotated += victim.hold_until > now
            if victim in callers:
                needed = places.tokens_needed(session, turn.arrival)
                missing = self._missing_tokens(session, needed, is_overdue=is_overdue)
                places.shrink(victim, max(0, missing))  # it continues later with the rest
            else:
                places.leave(victim)
        return True

    def _headroom(self, capacity: int, needed: int) -> int:
        """Return the tokens that a turn without a place leaves to the growth of the others."""
        limits = self.limits
        part = min(1.0, self.prefill_rate.seconds(needed) / limits.headroom_seconds)
        return int(capacity * limits.headroom * part)

    def _victims(self, turn: Turn, session: PlacedSession, now: float) -> Iterator[PlacedSession]:
        """Iterate over the sessions whose places a turn may take, in the order of taking them."""
        others = [one for one in self._places.parked() if one is not session]
        is_cold = session.placement is None and not self._waiting.is_overdue(turn, now)
        if is_cold and self._waiting and not self._waiting.has_idled(turn, now):
            # The engine evicts the least recently used prefix first: without losing a held place,
            # newer ones cannot be freed. That is only worth a short time in which nothing runs.
            yield from takewhile(lambda one: one.hold_until <= now, others)
            return
        yield from (one for one in others if one.hold_until <= now)
        held = [one for one in others if one.hold_until > now]
        if self._waiting.is_overdue(turn, now):
            yield from sorted(held, key=lambda one: one.placement or 0)
        elif not is_cold:
            # The session has grown. The sessions that were admitted after it give way, so that
            # the oldest one can always continue.
            placement = session.placement or 0
            newer = [one for one in held if (one.placement or 0) > placement]
            yield from sorted(newer, key=lambda one: -(one.placement or 0))

    def _stop_turn(self, turn: Turn, now: float) -> PlacedSession:
        if turn.state != "running":
            raise ValueError(f"turn {turn.number} is not running but {turn.state}")
        turn.state = "finished"
        session = self._sessions[turn.arrival.session]
        session.running -= 1
        self.running_turns -= 1
        self._waiting.idle_since = None if self.running_turns else now
        return session

    def _park(self, session: PlacedSession, context_tokens: int, hold_until: float) -> None:
        """Keep the place of a session after its last running turn, unless the session has ended."""
        if session.is_ended:
            self._places.leave(session)
            if not session.waiting:
                del self._sessions[session.key]
            return
        session.hold_until = inf if session.waiting else hold_until
        self._places.park(session, context_tokens)
        self._places.evict()
