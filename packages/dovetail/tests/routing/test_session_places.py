"""Places: shared heads, sessions above the capacity, sessions that do not return."""

import pytest

from dovetail.routing import session_places
from dovetail.routing.session_places import SESSION_EXPIRY_SECONDS
from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, Turn, TurnArrival, TurnEnd

BASH = (("Bash", "pytest"),)
LIMITS = SchedulingLimits(
    prefill_tokens_per_second=100.0, headroom=0.0, rotation_seconds=120.0, rotation_factor=1e6
)
CAPACITY = 1_000


def scheduler(capacity: int | None = CAPACITY) -> SessionScheduler:
    return SessionScheduler(capacity, LIMITS)


def arrive(one: SessionScheduler, session: str, tokens: int, now: float = 0.0) -> Turn:
    return one.arrive(TurnArrival(session, tokens), now)


def run_with_head(one: SessionScheduler, session: str, tokens: int, shared: int) -> None:
    turn = one.arrive(TurnArrival(session, tokens, head="h", shared_tokens=shared), 0.0)
    one.finish(turn, TurnEnd(tokens, BASH), 1.0)


def test_long_beginning_of_two_sessions_is_not_subtracted_from_others() -> None:
    """A fork shares 90 tokens with its origin; other sessions share only the system text."""
    one = scheduler()
    run_with_head(one, "origin", 100, 90)
    run_with_head(one, "fork", 100, 90)
    for number in range(5):
        run_with_head(one, f"other-{number}", 100, 10)
    assert one.used_tokens == 90 + 2 * 10 + 5 * 90


def test_long_beginning_is_freed_with_the_sessions_that_share_it() -> None:
    one = scheduler()
    for name, shared in (("origin", 90), ("fork", 90), ("other", 10)):
        run_with_head(one, name, 100, shared)
    one.release("origin", 2.0)
    assert one.used_tokens == 90 + 10 + 90
    one.release("fork", 2.0)
    assert one.used_tokens == 10 + 90
    one.release("other", 2.0)
    assert one.used_tokens == 0


def test_place_has_room_for_each_of_two_concurrent_turns() -> None:
    one = scheduler()
    one.arrive(TurnArrival("a", 500, head="h", shared_tokens=400), 0.0)
    one.arrive(TurnArrival("a", 20, head="h", shared_tokens=10), 0.0)
    assert one.used_tokens == 500


def test_place_of_a_session_whose_next_turn_waits_is_not_taken() -> None:
    one = scheduler()
    arrive(one, "running", 500)
    one.finish(arrive(one, "a", 400), TurnEnd(400, waits_for_user=True), 1.0)
    assert arrive(one, "a", 900, 2.0).state == "waiting"
    assert arrive(one, "cold", 300, 3.0).state == "waiting"
    assert one.admit(3.0) == []
    assert one.used_tokens == 900


def test_place_of_a_session_with_two_turns_is_not_taken_when_the_first_ends() -> None:
    one = scheduler()
    arrive(one, "running", 500)
    first = arrive(one, "a", 400)
    assert arrive(one, "a", 900, 1.0).state == "waiting"
    assert arrive(one, "cold", 300, 1.0).state == "waiting"
    one.finish(first, TurnEnd(400, waits_for_user=True), 2.0)
    assert one.admit(2.0) == []
    assert one.used_tokens == 900


def test_released_session_that_continues_keeps_its_place() -> None:
    one = scheduler()
    arrive(one, "running", 500)
    first = arrive(one, "a", 400)
    one.release("a", 1.0)
    assert arrive(one, "a", 600, 2.0).state == "waiting"
    one.finish(first, TurnEnd(400), 3.0)
    assert one.admit(3.0) == []
    assert one.used_tokens == 900


def test_head_that_stays_in_use_frees_nothing() -> None:
    one = scheduler(700)
    arrive(one, "running", 100)
    turn = one.arrive(TurnArrival("idle", 500, head="h", shared_tokens=300), 0.0)
    one.finish(turn, TurnEnd(500, waits_for_user=True), 1.0)
    same_head = one.arrive(TurnArrival("cold", 800, head="h", shared_tokens=300), 2.0)
    assert same_head.state == "waiting"
    assert one.used_tokens == 600


def test_number_of_known_sessions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_places, "MAX_KNOWN_SESSIONS", 20)
    one = scheduler(None)
    for number in range(100):
        turn = arrive(one, f"s{number}", 1, float(number) / 100)
        one.finish(turn, TurnEnd(1), number / 100)
        assert len(one._sessions) <= 20
    assert "s99" in one._sessions


def test_choices_of_a_session_above_the_capacity_run_at_once() -> None:
    one = scheduler()
    assert [arrive(one, "large", 2_000).state for _ in range(3)] == ["running"] * 3


def test_choices_of_a_session_above_the_capacity_run_although_others_wait() -> None:
    one = scheduler()
    arrive(one, "large", 2_000)
    arrive(one, "other", 100)
    choice = arrive(one, "large", 2_000)
    assert one.admit(0.0) == [choice]


def test_parallel_turns_of_a_session_alone_run_at_once() -> None:
    one = scheduler()
    assert [arrive(one, "a", tokens).state for tokens in (900, 1_200)] == ["running"] * 2


def test_choice_that_needs_no_further_room_runs_while_the_cache_is_overcommitted() -> None:
    one = scheduler()
    arrive(one, "a", 900)
    forced = arrive(one, "b", 900)
    assert one.admit(240.0) == [forced]
    assert arrive(one, "a", 900, 241.0).state == "running"


def test_places_fit_into_the_cache_after_forced_turns() -> None:
    one = scheduler()
    first, forced = arrive(one, "a", 900), arrive(one, "b", 900)
    assert one.admit(240.0) == [forced]
    assert one.used_tokens == 1_800
    one.finish(first, TurnEnd(900, BASH), 241.0)
    one.finish(forced, TurnEnd(950, BASH), 242.0)
    tokens = {state.session: state.tokens for state in one.sessions(242.0)}
    assert tokens == {"a": 50, "b": 950}  # the engine has evicted the rest
    assert one.used_tokens == CAPACITY


def test_engine_evicts_a_part_of_the_oldest_place() -> None:
    one = scheduler()
    first, second = arrive(one, "a", 400), arrive(one, "b", 500)
    one.finish(first, TurnEnd(400, BASH), 1.0)
    one.finish(second, TurnEnd(700, BASH), 2.0)  # more output than expected
    assert {state.session: state.tokens for state in one.sessions(2.0)} == {"a": 300, "b": 700}


def test_place_of_a_session_above_the_capacity_is_the_whole_cache() -> None:
    one = scheduler()
    one.finish(arrive(one, "large", 2_000), TurnEnd(2_000, BASH), 1.0)
    assert one.used_tokens == CAPACITY
    assert arrive(one, "large", 2_100, 2.0).state == "running"


def test_places_fit_into_a_smaller_capacity() -> None:
    one = scheduler()
    for name in "ab":
        one.finish(arrive(one, name, 500), TurnEnd(500, BASH), 1.0)
    one.set_capacity(400)
    tokens = {state.session: state.tokens for state in one.sessions(2.0)}
    assert tokens == {"b": 400}


def test_sessions_without_a_place_are_not_idle() -> None:
    one = scheduler()
    one.finish(arrive(one, "a", 600), TurnEnd(600, waits_for_user=True), 1.0)
    arrive(one, "b", 600, 2.0)
    assert [state.session for state in one.sessions(2.0)] == ["b"]


def test_tool_time_of_a_session_that_lost_its_place_is_learned() -> None:
    one = scheduler()
    one.finish(arrive(one, "a", 600), TurnEnd(600, BASH, return_seconds=500.0), 1.0)
    one.finish(arrive(one, "b", 600, 2.0), TurnEnd(600), 3.0)
    assert arrive(one, "a", 600, 401.0).actual_seconds == 400.0


def test_sessions_that_do_not_return_expire() -> None:
    one = scheduler(None)
    for number in range(100):
        one.finish(arrive(one, f"s{number}", 10, 1.0), TurnEnd(10, BASH), 2.0)
    waiting = arrive(one, "running", 10, 3.0)
    assert len(one.sessions(3.0)) == 101
    arrive(one, "late", 10, 2.0 + SESSION_EXPIRY_SECONDS)
    assert {state.session for state in one.sessions(0.0)} == {"running", "late"}
    assert one.used_tokens == 20
    one.finish(waiting, TurnEnd(10), 4.0 + SESSION_EXPIRY_SECONDS)


def test_session_with_a_cancelled_turn_does_not_expire_early() -> None:
    one = scheduler()
    one.cancel(arrive(one, "a", 100, 5_000.0), 5_001.0)
    arrive(one, "b", 100, 5_100.0)
    assert one.used_tokens == 200
