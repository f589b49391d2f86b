"""The session scheduler: admission, places between turns, order, bounds of waiting."""

from dataclasses import replace

import pytest

from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, Turn, TurnArrival, TurnEnd

BASH = (("Bash", "pytest"),)
#: The engine prefills slowly, so the place of a session of 1,000 tokens is held for 10 seconds.
LIMITS = SchedulingLimits(
    prefill_tokens_per_second=100.0,
    hold_factor=1.0,
    headroom=0.0,
    rotation_seconds=120.0,
    rotation_factor=1e6,
)
CAPACITY = 1_000


def scheduler(capacity: int | None = CAPACITY) -> SessionScheduler:
    return SessionScheduler(capacity, LIMITS)


def arrive(
    one: SessionScheduler, session: str, tokens: int, now: float = 0.0, tenant: str = ""
) -> Turn:
    return one.arrive(TurnArrival(session, tokens, tenant), now)


def sessions_of(turns: list[Turn]) -> list[str]:
    return [turn.arrival.session for turn in turns]


def test_sessions_are_admitted_up_to_the_capacity() -> None:
    one = scheduler()
    states = [arrive(one, name, 400).state for name in "abc"]
    assert states == ["running", "running", "waiting"]
    assert one.used_tokens == 800
    assert one.admit(1.0) == []
    assert (one.running_turns, one.waiting_turns) == (2, 1)


def test_no_place_is_held_while_the_server_drains() -> None:
    one = scheduler()
    one.finish(arrive(one, "before", 400), TurnEnd(400, BASH), 1.0)
    running = arrive(one, "running", 500, 1.0)
    waiting = [arrive(one, "first", 500, 1.0), arrive(one, "second", 500, 1.0)]
    assert one.admit(1.0) == []
    one.drain(2.0)
    assert one.admit(2.0) == waiting[:1]
    assert one.finish(running, TurnEnd(500, BASH), 3.0) == 0.0
    assert one.admit(3.0) == waiting[1:]


def test_session_with_a_waiting_turn_retains_its_place_while_the_server_drains() -> None:
    one = scheduler()
    one.finish(arrive(one, "a", 400), TurnEnd(400, BASH), 1.0)
    arrive(one, "b", 600, 1.0)
    waiting = arrive(one, "a", 500, 2.0)
    arrive(one, "c", 300, 2.0)
    one.drain(3.0)
    assert one.admit(3.0) == []
    assert [state.tokens for state in one.sessions(3.0) if state.session == "a"] == [400]
    assert waiting.state == "waiting"


def test_turns_that_run_while_the_engine_fails_leave_no_places() -> None:
    one = scheduler()
    cancelled, finished = arrive(one, "cancelled", 400), arrive(one, "finished", 400)
    one.reset()
    one.cancel(cancelled, 2.0)
    one.finish(finished, TurnEnd(410, BASH), 2.0)
    assert one.sessions(2.0) == []
    assert one.used_tokens == 0
    one.finish(arrive(one, "finished", 420, 3.0), TurnEnd(430, BASH), 4.0)
    assert one.used_tokens == 430


def test_longest_wait_of_a_session_is_shown() -> None:
    one = scheduler()
    arrive(one, "running", 900)
    arrive(one, "waiting", 200, 1.0)
    arrive(one, "waiting", 200, 3.0)
    one.arrive(TurnArrival("waiting", 200), 4.0, arrived_at=2.0)
    (waits,) = (one.waiting_seconds for one in one.sessions(5.0) if one.status == "paused")
    assert waits == 4.0


def test_expected_output_is_reserved() -> None:
    one = scheduler()
    one.arrive(TurnArrival("a", 400, expected_output_tokens=200), 0.0)
    assert one.arrive(TurnArrival("b", 350, expected_output_tokens=51), 0.0).state == "waiting"


def test_shared_head_is_counted_once() -> None:
    one = scheduler()
    turns = [one.arrive(TurnArrival(n, 600, head="h", shared_tokens=500), 0.0) for n in "abcdef"]
    assert [turn.state for turn in turns] == ["running"] * 5 + ["waiting"]
    assert one.used_tokens == 1_000
    for turn in turns[:5]:
        one.release(turn.arrival.session, 1.0)
        one.finish(turn, TurnEnd(600), 1.0)
    assert one.used_tokens == 0


def test_head_is_freed_with_its_last_session() -> None:
    one = scheduler()
    for name in "ab":
        turn = one.arrive(TurnArrival(name, 600, head="h", shared_tokens=500), 0.0)
        one.finish(turn, TurnEnd(600, waits_for_user=True), 1.0)
    assert arrive(one, "c", 900, 2.0).state == "running"
    assert one.used_tokens == 900


def test_session_that_is_expected_back_keeps_its_place() -> None:
    one = scheduler()
    first = arrive(one, "a", 600)
    arrive(one, "b", 600)
    one.finish(first, TurnEnd(650, BASH), 1.0)
    assert one.admit(1.0) == []
    assert arrive(one, "a", 700, 5.0).state == "waiting"  # behind another turn: `admit` decides
    assert sessions_of(one.admit(5.0)) == ["a"]


def test_place_is_given_up_when_the_session_does_not_return() -> None:
    one = scheduler()
    first = arrive(one, "a", 600)
    second = arrive(one, "b", 600)
    one.finish(first, TurnEnd(650, BASH), 1.0)
    assert one.next_deadline(7.0) == 7.5
    assert one.admit(7.5) == [second]
    assert one.counters.yielded == 1


def test_engine_is_not_left_idle_while_there_are_places_that_are_not_held() -> None:
    """A held place that is older than others protects those, until nothing has run for long."""
    limits = replace(LIMITS, hold_factor=1e3)
    one = SessionScheduler(CAPACITY, limits)
    one.finish(arrive(one, "held", 300), TurnEnd(300, BASH), 1.0)
    one.finish(arrive(one, "idle", 600, 1.0), TurnEnd(600, waits_for_user=True), 2.0)
    running = arrive(one, "running", 100, 3.0)
    arrive(one, "large", 900, 3.0)
    cold = arrive(one, "cold", 400, 3.0)
    assert one.admit(9.0) == []
    one.release("running", 10.0)
    one.finish(running, TurnEnd(100), 10.0)
    assert one.admit(10.0) == []
    assert one.next_deadline(10.0) == 14.0  # the engine prefills 100 tokens per second
    assert one.admit(13.9) == []
    assert one.admit(14.0) == [cold]
    assert {one.session: one.tokens for one in one.sessions(14.0)} == {
        "held": 300,
        "cold": 400,
        "large": 0,
    }


def test_place_is_held_no_longer_than_prefilling_it_again_takes() -> None:
    """An engine that prefills fast is not kept idle for sessions that are expected back."""
    one = scheduler()
    first, second = arrive(one, "a", 600), arrive(one, "b", 600)
    for _ in range(50):
        rate = one.prefill_rate
        rate.observe(rate.end(rate.start(0.0), 0.01), 100_000)
    one.finish(first, TurnEnd(650, BASH), 1.0)
    deadline = one.next_deadline(1.0)
    assert deadline is not None
    assert deadline < 1.1
    assert one.admit(deadline) == [second]


@pytest.mark.parametrize(("rate", "seconds"), [(10.0, 120.0), (100_000.0, 30.0)])
def test_turns_take_held_places_earlier_where_prefilling_them_is_cheap(
    rate: float, seconds: float
) -> None:
    limits = replace(LIMITS, rotation_factor=10.0, prefill_tokens_per_second=rate)
    one = SessionScheduler(CAPACITY, limits)
    arrive(one, "a", 600)
    arrive(one, "b", 600)
    deadline = one.next_deadline(0.75 * seconds)
    assert deadline == seconds


def test_headroom_is_reserved_only_where_prefill_is_slow() -> None:
    states = {}
    for rate in (100.0, 1e9):
        limits = SchedulingLimits(headroom=0.1, prefill_tokens_per_second=rate)
        one = SessionScheduler(CAPACITY, limits)
        arrive(one, "a", 500)
        arrive(one, "large", 600)  # waits, so that the others do not fit by chance
        arrive(one, "b", 450)
        states[rate] = sessions_of(one.admit(1.0))
    assert states == {100.0: [], 1e9: ["b"]}


def test_session_that_waits_for_a_user_gives_its_place_up_at_once() -> None:
    one = scheduler()
    first = arrive(one, "a", 600)
    second = arrive(one, "b", 600)
    one.finish(first, TurnEnd(650, waits_for_user=True), 1.0)
    assert one.admit(1.0) == [second]


def test_session_that_runs_a_slow_tool_gives_its_place_up_once_the_tool_is_known() -> None:
    one = scheduler()
    for number in range(4):
        turn = arrive(one, "a", 600, number * 100.0)
        one.finish(turn, TurnEnd(650, BASH), number * 100.0 + 1)
    waiting = arrive(one, "b", 600, 302.0)
    assert waiting.state == "running"
    last = arrive(one, "a", 10, 303.0)
    assert last.predicted_seconds is not None
    assert last.predicted_seconds >= 90
    assert last.actual_seconds == pytest.approx(2.0)


def test_place_of_an_idle_session_stays_while_it_is_not_needed() -> None:
    one = scheduler()
    turn = arrive(one, "a", 600)
    one.finish(turn, TurnEnd(650, waits_for_user=True), 1.0)
    assert one.used_tokens == 650
    assert arrive(one, "a", 700, 5_000.0).state == "running"
    assert one.used_tokens == 700


def test_oversized_session_runs_alone() -> None:
    one = scheduler()
    first = arrive(one, "a", 100)
    large = arrive(one, "large", 5_000)
    assert large.state == "waiting"
    one.finish(first, TurnEnd(100, waits_for_user=True), 1.0)
    assert one.admit(1.0) == [large]
    small = arrive(one, "b", 100, 2.0)
    assert small.state == "waiting"
    one.finish(large, TurnEnd(5_000, waits_for_user=True), 3.0)
    assert one.admit(3.0) == [small]


def test_oldest_session_grows_into_the_place_of_the_newest() -> None:
    one = scheduler()
    turns = [arrive(one, name, 330, time) for time, name in enumerate("abc")]
    for turn in turns:
        one.finish(turn, TurnEnd(330, BASH), 3.0)
    grown = [arrive(one, name, 400, 4.0) for name in "cba"]
    assert {turn.state for turn in grown} == {"waiting"}
    assert sessions_of(one.admit(4.0)) == ["a", "b"]
    assert [state.session for state in one.sessions(4.0) if state.status == "paused"] == ["c"]


def test_long_wait_takes_the_place_of_the_session_that_had_it_longest() -> None:
    one = scheduler()
    a, b = arrive(one, "a", 500), arrive(one, "b", 500)
    c = arrive(one, "c", 500, 1.0)
    one.finish(a, TurnEnd(500, BASH), 120.9)
    one.finish(b, TurnEnd(500, BASH), 120.9)
    assert one.admit(120.9) == []
    assert one.next_deadline(120.9) == 121.0
    assert one.admit(121.0) == [c]
    assert one.counters.rotated == 1
    assert not c.is_forced
    assert arrive(one, "b", 500, 122.0).state == "running"
    assert arrive(one, "a", 500, 122.0).state == "waiting"


def test_longest_wait_runs_without_room() -> None:
    one = scheduler()
    arrive(one, "a", 900)
    b = arrive(one, "b", 900, 1.0)
    assert one.admit(240.9) == []
    assert one.admit(241.0) == [b]
    assert b.is_forced
    assert b.waited_seconds == 240.0
    assert one.counters.forced == 1


def test_overdue_turn_is_not_passed_by_smaller_ones() -> None:
    one = scheduler()
    a, b = arrive(one, "a", 500), arrive(one, "b", 500)
    large = arrive(one, "large", 900, 0.0)
    small = arrive(one, "small", 100, 100.0)
    one.finish(a, TurnEnd(500, waits_for_user=True), 130.0)
    assert one.admit(130.0) == []
    one.finish(b, TurnEnd(500, BASH), 140.0)
    assert one.admit(140.0) == [large, small]


def test_order_of_waiting_turns() -> None:
    one = scheduler()
    turn = arrive(one, "first", 1_000)
    one.arrive(TurnArrival("background", 100, background=True), 1.0)
    arrive(one, "interactive", 100, 2.0)
    arrive(one, "later", 100, 3.0)
    one.arrive(TurnArrival("urgent", 100, priority=1), 4.0)
    one.finish(turn, TurnEnd(1_000, waits_for_user=True), 5.0)
    assert sessions_of(one.admit(5.0)) == ["urgent", "interactive", "later", "background"]


def test_returning_turns_go_before_cold_ones_of_equal_priority() -> None:
    one = scheduler()
    a = arrive(one, "a", 500)
    b = arrive(one, "b", 500)
    one.finish(a, TurnEnd(500, BASH), 1.0)
    arrive(one, "cold", 100, 2.0)
    arrive(one, "a", 500, 4.0)
    one.finish(b, TurnEnd(500, waits_for_user=True), 4.0)
    assert sessions_of(one.admit(4.0)) == ["a", "cold"]


def test_tenants_share_the_capacity() -> None:
    one = scheduler()
    turns = [arrive(one, f"a{n}", 100, tenant="a") for n in range(20)]
    arrive(one, "b0", 100, 1.0, tenant="b")
    arrive(one, "b1", 100, 1.0, tenant="b")
    for turn in turns[:3]:
        one.release(turn.arrival.session, 2.0)
        one.finish(turn, TurnEnd(100), 2.0)
    assert sessions_of(one.admit(2.0)) == ["b0", "b1", "a10"]


def test_tenant_with_more_than_half_of_its_share_waits_for_the_whole_time() -> None:
    one = scheduler()
    one.finish(arrive(one, "a", 600, tenant="a"), TurnEnd(600, BASH, return_seconds=500.0), 0.0)
    held = arrive(one, "a", 600, 0.0, tenant="a")
    arrive(one, "b0", 300, tenant="b")
    b1 = arrive(one, "b1", 200, tenant="b")
    one.finish(held, TurnEnd(600, BASH), 29.0)
    assert one.admit(30.0) == []  # the place of `a` is held for 6 seconds
    assert one.admit(35.0) == [b1]


def test_turn_takes_places_before_it_runs_without_room() -> None:
    limits = replace(LIMITS, max_wait_seconds=50.0, hold_factor=1e3, rotation_seconds=100.0)
    one = SessionScheduler(CAPACITY, limits)
    for _ in range(100):
        one.finish(arrive(one, "short", 1), TurnEnd(1, waits_for_user=True), 0.0)
    one.finish(arrive(one, "held", 900), TurnEnd(900, BASH), 0.0)
    waiting = arrive(one, "waiting", 500)
    assert one.admit(49.0) == []
    assert one.admit(50.0) == [waiting]
    assert not waiting.is_forced


def test_tenant_below_its_share_waits_for_a_quarter_of_the_time() -> None:
    one = scheduler()
    turns = [arrive(one, f"a{n}", 100, tenant="a") for n in range(10)]
    b = arrive(one, "b", 100, 0.0, tenant="b")
    one.finish(turns[0], TurnEnd(100, BASH), 29.5)  # its place is held until 30.5
    assert one.admit(29.5) == []
    assert one.admit(30.0) == [b]
    assert one.counters.rotated == 1


def test_unknown_capacity_admits_everything() -> None:
    one = scheduler(None)
    assert {arrive(one, str(n), 10**9).state for n in range(50)} == {"running"}
    one.set_capacity(10)
    assert arrive(one, "late", 5, 1.0).state == "waiting"
    one.set_capacity(None)
    assert sessions_of(one.admit(2.0)) == ["late"]


def test_cancelled_turn_leaves_no_trace() -> None:
    one = scheduler()
    a = arrive(one, "a", 900)
    b = arrive(one, "b", 900, 1.0)
    one.cancel(b, 2.0)
    assert (b.state, one.waiting_turns) == ("finished", 0)
    one.cancel(a, 3.0)
    assert (a.state, one.running_turns) == ("finished", 0)
    assert arrive(one, "c", 900, 3.0).state == "running"
    one.cancel(a, 4.0)  # twice
    assert one.running_turns == 1


def test_cancelled_wait_of_a_session_with_a_place_frees_it_for_others() -> None:
    one = scheduler()
    one.finish(arrive(one, "a", 600), TurnEnd(600, BASH), 1.0)
    b, returned = arrive(one, "b", 600, 1.0), arrive(one, "a", 600, 2.0)
    assert {b.state, returned.state} == {"waiting"}
    one.cancel(returned, 3.0)
    assert one.admit(3.0) == [b]


def test_released_session_frees_its_place_at_once_or_after_its_turn() -> None:
    one = scheduler()
    a = arrive(one, "a", 900)
    one.release("a", 1.0)
    assert one.used_tokens == 900
    one.finish(a, TurnEnd(950, BASH), 2.0)
    assert one.used_tokens == 0
    assert one.sessions(2.0) == []
    b = arrive(one, "b", 900, 3.0)
    one.finish(b, TurnEnd(900, BASH), 3.0)
    one.release("b", 3.0)
    assert one.used_tokens == 0
    assert one.sessions(3.0) == []
    one.release("unknown", 3.0)


def test_engine_restart_empties_the_cache() -> None:
    one = scheduler()
    a = arrive(one, "a", 400)
    b = arrive(one, "b", 400)
    one.finish(a, TurnEnd(400, BASH), 1.0)
    one.reset()
    assert one.used_tokens == 400
    one.cancel(b, 2.0)
    assert arrive(one, "c", 900, 2.0).state == "running"


def test_session_states() -> None:
    one = scheduler()
    a, b = arrive(one, "a", 400), arrive(one, "b", 300)
    arrive(one, "c", 300)
    one.finish(b, TurnEnd(300, BASH), 1.0)
    d = arrive(one, "d", 500, 1.0)
    found = {state.session: state for state in one.sessions(3.0)}
    assert {name: state.status for name, state in found.items()} == {
        "a": "running", "b": "held", "c": "running", "d": "paused"
    }  # fmt: skip
    assert found["d"].waiting_seconds == 2.0
    assert found["b"].expected_in_seconds == pytest.approx(1.0)
    assert found["a"].tokens == a.arrival.prompt_tokens
    assert found["d"].tokens == 0
    assert d.waited_seconds is None


def test_concurrent_turns_of_a_session_share_its_place() -> None:
    one = scheduler()
    first, second = arrive(one, "a", 600), arrive(one, "a", 700)
    assert (first.state, second.state, one.used_tokens) == ("running", "running", 700)
    one.finish(first, TurnEnd(650, BASH), 1.0)
    assert one.used_tokens == 700
    one.finish(second, TurnEnd(750, BASH), 2.0)
    assert one.used_tokens == 750


def test_finishing_a_turn_twice_is_an_error() -> None:
    one = scheduler()
    turn = arrive(one, "a", 10)
    one.finish(turn, TurnEnd(10), 1.0)
    with pytest.raises(ValueError, match="is not running but finished"):
        one.finish(turn, TurnEnd(10), 1.0)
