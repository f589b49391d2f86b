"""Turns that wait for long, and the work of admission while many turns wait."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dovetail.routing.session_places import PlacedSession, SessionPlaces
from dovetail.routing.session_scheduler import MAX_REJECTED_TURNS, SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, Turn, TurnArrival, TurnEnd

BASH = (("Bash", "pytest"),)
LIMITS = SchedulingLimits(
    prefill_tokens_per_second=100.0, headroom=0.0, rotation_seconds=120.0, rotation_factor=1e6
)


def arrive(one: SessionScheduler, session: str, tokens: int, now: float = 0.0) -> Turn:
    return one.arrive(TurnArrival(session, tokens), now)


def overdue_scene() -> tuple[SessionScheduler, Turn, Turn]:
    """A session between turns with 300 of 1,000 tokens, a long turn with 600, and one overdue."""
    one = SessionScheduler(1_000, LIMITS)
    one.finish(arrive(one, "warm", 300), TurnEnd(300, BASH), 0.0)
    long = arrive(one, "long", 600)
    overdue = arrive(one, "overdue", 900)
    assert one.admit(120.0) == []
    return one, long, overdue


def test_session_with_a_place_runs_although_another_turn_is_overdue() -> None:
    one, _, _ = overdue_scene()
    warm = arrive(one, "warm", 310, 125.0)
    assert one.admit(125.0) == []  # the running turns may end soon
    assert one.next_deadline(125.0) == 130.0
    assert one.admit(130.0) == [warm]


def test_session_with_a_place_takes_none_while_another_turn_is_overdue() -> None:
    one, _, _ = overdue_scene()
    arrive(one, "idle", 50, 130.0)  # without a place: it does not pass
    arrive(one, "warm", 500, 130.0)  # more than is free
    assert one.admit(130.0) == []


def test_overdue_turn_goes_before_sessions_with_a_place() -> None:
    one, long, overdue = overdue_scene()
    one.finish(long, TurnEnd(600, BASH), 131.0)
    arrive(one, "warm", 310, 131.0)
    arrive(one, "long", 610, 131.0)
    assert one.admit(131.0) == [overdue]


def test_sessions_with_a_place_delay_an_overdue_turn_no_longer_than_the_longest_wait() -> None:
    one, long, overdue = overdue_scene()
    now, running = 130.0, long
    while overdue.state == "waiting":  # one of the two sessions always runs
        now += 5.0
        name = "warm" if running is long else "long"
        following = arrive(one, name, 300 if name == "warm" else 600, now)
        one.admit(now)
        if running.state == "running" and following.state == "running":
            one.finish(running, TurnEnd(running.arrival.prompt_tokens, BASH), now)
            running = following
            one.admit(now)
        assert now <= LIMITS.max_wait_seconds
    assert overdue.waited_seconds is not None


@pytest.mark.parametrize("kind", ["cold", "warm"])
def test_work_of_admission_does_not_grow_with_waiting_turns_times_places(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, waiting = 200, 200
    one = SessionScheduler(places * 100, LIMITS)
    arrive(one, "running", 100)
    for number in range(1, places):
        one.finish(arrive(one, f"p{number}", 100), TurnEnd(100, BASH), 0.0)
    for number in range(waiting):  # each one needs less than all before
        name = f"p{places - 1 - number % (places - 1)}" if kind == "warm" else f"w{number}"
        arrive(one, name, 1_000_000 - number, 0.1)
    visited = 0
    iterate = SessionPlaces.parked

    def parked(self: SessionPlaces) -> Iterator[PlacedSession]:
        nonlocal visited
        for session in iterate(self):
            visited += 1
            yield session

    monkeypatch.setattr(SessionPlaces, "parked", parked)
    assert one.admit(0.2) == []
    assert 0 < visited <= 2 * (MAX_REJECTED_TURNS + 1) * places


def test_turn_that_becomes_overdue_when_others_are_admitted_runs_with_them() -> None:
    """The time after which turns take places is shorter when fewer tokens wait."""
    limits = replace(LIMITS, prefill_tokens_per_second=1_000.0, rotation_factor=10.0)
    one = SessionScheduler(10_000, limits)
    for _ in range(60):
        one.finish(arrive(one, "short", 1, 0.0), TurnEnd(1, waits_for_user=True), 1.0)
    one.release("short", 1.0)
    held, running = arrive(one, "held", 6_600), arrive(one, "running", 3_400)
    overdue, small = arrive(one, "overdue", 6_500, 0.6), arrive(one, "small", 3_000, 1.0)
    held.started_at = 59.0
    one.finish(held, TurnEnd(6_600, BASH), 60.0)
    assert one.admit(85.0) == []
    one.cancel(running, 85.0)
    one.release("running", 85.0)
    assert one.admit(85.0) == [small, overdue]


def test_turn_that_fits_is_admitted_after_many_that_do_not() -> None:
    one = SessionScheduler(1_000, LIMITS)
    arrive(one, "running", 900)
    for number in range(3 * MAX_REJECTED_TURNS):
        arrive(one, f"w{number}", 900 - number)
    small = arrive(one, "small", 100)
    assert one.admit(1.0) == [small]


def test_oldest_session_continues_after_many_that_cannot() -> None:
    """Nothing runs, and the only session that may take places is tried last."""
    count = 3 * MAX_REJECTED_TURNS
    one = SessionScheduler(count * 100, LIMITS)
    for number in range(count):
        one.finish(arrive(one, f"s{number}", 100), TurnEnd(100, BASH), 0.0)
    for number in reversed(range(count)):
        arrival = TurnArrival(f"s{number}", 110_000 + number, priority=number)
        one.arrive(arrival, 0.1)
    assert [turn.arrival.session for turn in one.admit(0.1)] == ["s0"]
