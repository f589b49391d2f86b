"""Properties of the session scheduler over arbitrary histories."""

from hypothesis import given, settings
from hypothesis import strategies as st
from returning_sessions import suspend

from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, Turn, TurnArrival, TurnEnd

LIMITS = SchedulingLimits(max_wait_seconds=100.0, rotation_seconds=40.0, hold_factor=200.0)
CAPACITY = 1_000
MAX_TURN_SECONDS = 20.0

ARRIVALS = st.builds(
    TurnArrival,
    session=st.sampled_from("abcdefgh"),
    prompt_tokens=st.integers(1, 1_500),
    tenant=st.sampled_from(["", "x", "y"]),
    head=st.none() | st.sampled_from("hi"),
    shared_tokens=st.integers(0, 400),
    expected_output_tokens=st.integers(0, 100),
    priority=st.integers(-1, 1),
    background=st.booleans(),
    relatives=st.lists(st.sampled_from("abcdefgh"), max_size=3).map(tuple),
)
ENDS = st.builds(
    TurnEnd,
    context_tokens=st.integers(0, 1_600),
    tool_keys=st.lists(st.sampled_from([("t", "a"), ("t", "b"), ("u", "")]), max_size=2).map(tuple),
    waits_for_user=st.booleans(),
    return_seconds=st.none() | st.floats(0, 50),
)
CHANGES = st.one_of(
    st.tuples(st.just("arrive"), ARRIVALS),
    st.tuples(st.just("finish"), st.integers(0, 7), ENDS),
    st.tuples(st.just("cancel"), st.integers(0, 7)),
    st.tuples(st.just("release"), st.sampled_from("abcdefgh")),
    st.tuples(st.just("capacity"), st.none() | st.integers(0, 3_000)),
    st.tuples(st.just("reset")),
    st.tuples(st.just("drain")),
)
HISTORIES = st.lists(st.tuples(st.floats(0, 15), CHANGES), max_size=60)


class History:
    """Runs a scheduler as the server does, and checks what must hold at every step."""

    def __init__(self, capacity: int | None = CAPACITY) -> None:
        self.scheduler = SessionScheduler(capacity, LIMITS)
        self.now = 0.0
        self.turns: list[Turn] = []

    @property
    def running(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.state == "running"]

    def advance(self, seconds: float) -> None:
        """Let time pass, with a call of `admit` at each deadline."""
        end = self.now + seconds
        while (deadline := self.scheduler.next_deadline(self.now)) is not None and deadline <= end:
            assert deadline > self.now
            self.now = deadline
            self.admit()
        self.now = end

    def change(self, kind: str, *values: object) -> None:
        scheduler, now = self.scheduler, self.now
        match kind, values:
            case "arrive", (TurnArrival() as arrival,):
                before = scheduler.used_tokens
                can_run = scheduler.can_run(arrival, now) and not scheduler.waiting_turns
                turn = scheduler.arrive(arrival, now)
                self.turns.append(turn)
                assert turn.state == "running" or not can_run
                if turn.state == "running":
                    self.check_admission(turn, before)
            case "finish", (int() as index, TurnEnd() as end) if self.running:
                turn = self.running[index % len(self.running)]
                seconds = scheduler.finish(turn, end, now)
                placed = [one.session for one in scheduler.sessions(now)]
                assert not seconds or turn.arrival.session in placed
            case "cancel", (int() as index,) if self.turns:
                scheduler.cancel(self.turns[index % len(self.turns)], now)
            case "release", (str() as session,):
                scheduler.release(session, now)
            case "capacity", (int() | None as tokens,):
                scheduler.set_capacity(tokens)
            case "reset", ():
                scheduler.reset()
            case "drain", ():
                scheduler.drain(now)
        self.admit()
        assert not scheduler.admit(now), "all turns that may run were admitted"

    def admit(self) -> None:
        before = self.scheduler.used_tokens
        admitted = self.scheduler.admit(self.now)
        for turn in admitted:
            assert turn.state == "running"
        if admitted:
            self.check_admission(admitted[-1], before)
        for turn in self.turns:
            if turn.state == "waiting":
                assert self.now < turn.arrived_at + LIMITS.max_wait_seconds
        running = len(self.running)
        assert self.scheduler.running_turns == running
        assert not (self.scheduler.is_suspended and self.scheduler.waiting_turns)
        assert running or self.scheduler.waiting_turns == 0 or self.has_held_places()
        if not running and self.scheduler.capacity_tokens is not None:
            assert self.scheduler.used_tokens <= self.scheduler.capacity_tokens

    def check_admission(self, turn: Turn, before: int) -> None:
        """Admission never exceeds the capacity, except by force or for a session alone."""
        capacity = self.scheduler.capacity_tokens
        if (
            capacity is None
            or self.scheduler.is_suspended
            or self.scheduler.used_tokens <= max(capacity, before)
        ):
            return
        is_forced = any(one.is_forced for one in self.running)
        placed = [one for one in self.scheduler.sessions(self.now) if one.tokens]
        assert is_forced or len(placed) <= 1

    def has_held_places(self) -> bool:
        states = self.scheduler.sessions(self.now)
        return any(state.status == "held" for state in states)

    def finish_all(self) -> None:
        """Finish running turns, which end within `MAX_TURN_SECONDS`, until none is left."""
        for _ in range(10 * len(self.turns) + 10):
            self.advance(MAX_TURN_SECONDS)
            for turn in self.running:
                self.change("finish", 0, TurnEnd(turn.arrival.prompt_tokens))
            if not self.running and not self.scheduler.waiting_turns:
                return
        raise AssertionError("turns are left")


def run(
    history: list[tuple[float, tuple[object, ...]]], capacity: int | None, is_suspended: bool
) -> History:
    """Run a history. `is_suspended`: scheduling is suspended at its beginning."""
    one = History(capacity)
    if is_suspended and capacity is not None:
        one.now = suspend(one.scheduler)
        for session in ("back", "large", "waiting"):
            one.scheduler.release(session, one.now)
    for seconds, (kind, *values) in history:
        one.advance(seconds)
        one.change(str(kind), *values)
    return one


@settings(max_examples=200, deadline=None)
@given(HISTORIES, st.none() | st.integers(0, 3_000), st.booleans())
def test_every_turn_runs_in_time_and_ends_whatever_happens(
    history: list[tuple[float, tuple[object, ...]]], capacity: int | None, is_suspended: bool
) -> None:
    """Cancels, releases, restarts, suspension and wrong or changed capacities strand no turn."""
    one = run(history, capacity, is_suspended)
    one.finish_all()
    assert {turn.state for turn in one.turns} <= {"finished"}
    for turn in one.turns:
        if turn.waited_seconds is not None:
            assert turn.waited_seconds <= LIMITS.max_wait_seconds


@settings(max_examples=100, deadline=None)
@given(HISTORIES, st.booleans())
def test_released_sessions_leave_nothing(
    history: list[tuple[float, tuple[object, ...]]], is_suspended: bool
) -> None:
    one = run(history, CAPACITY, is_suspended)
    one.finish_all()
    for session in "abcdefgh":
        one.scheduler.release(session, one.now)
    scheduler, places = one.scheduler, one.scheduler._places
    assert scheduler.used_tokens == 0
    assert scheduler.sessions(one.now) == []
    assert not scheduler._sessions
    assert not places._heads
    assert not places.tenants
    assert not scheduler._waiting._tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 15), ARRIVALS, ENDS), max_size=40))
def test_nothing_waits_while_everything_fits(
    turns: list[tuple[float, TurnArrival, TurnEnd]],
) -> None:
    """Eight sessions of at most 1,600 tokens in a KV cache for all of them."""
    one = History(8 * 1_600 + 2 * 400)
    for seconds, arrival, end in turns:
        one.advance(seconds)
        one.change("arrive", arrival)
        assert one.turns[-1].state == "running"
        if len(one.running) > 2:
            one.change("finish", 0, end)
    assert one.scheduler.counters.delayed == 0
    assert one.scheduler.counters.rotated == one.scheduler.counters.yielded == 0


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 12), st.integers(100, 1_200), st.floats(2, 15))
def test_no_session_starves(sessions: int, tokens: int, turn_seconds: float) -> None:
    """Sessions that always come back at once: each one gets its turns."""
    one = History()
    turns = [0] * sessions
    for number in range(sessions):
        one.change("arrive", TurnArrival(str(number), tokens))
    while one.now < 5 * LIMITS.max_wait_seconds:
        one.advance(turn_seconds)
        for turn in one.running:
            session = turn.arrival.session
            turns[int(session)] += 1
            one.scheduler.finish(turn, TurnEnd(tokens, (("t", ""),)), one.now)
            one.change("arrive", TurnArrival(session, tokens))
    assert min(turns) >= 4
