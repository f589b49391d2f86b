"""Scheduling is suspended while hardly any place is held until its session returns."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from fake_clock_loop import run_jumping
from returning_sessions import BASH, arrive, measure_prefill, return_often, suspend
from timed_sessions import FAST_RECOVERY, OUTPUT_TOKENS, Agent, Sink, TimedEngine

from dovetail.engines.engine import TokenDelta
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.session_admission import SessionAdmission
from dovetail.routing.session_holds import MIN_RETURNS, HeldReturns
from dovetail.routing.session_queue import UNMEASURED_TURNS
from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import SchedulingLimits, TurnArrival, TurnEnd, TurnProfile

#: A session of 100 tokens is prefilled in a second, and its place is held for two.
LIMITS = SchedulingLimits(prefill_tokens_per_second=100.0, hold_factor=2.0, headroom=0.0)


def measured() -> SessionScheduler:
    one = SessionScheduler(1_000, LIMITS)
    measure_prefill(one)
    return one


def suspended() -> tuple[SessionScheduler, float]:
    one = SessionScheduler(1_000, LIMITS)
    return one, suspend(one)


def test_scheduling_is_suspended_after_returns_without_a_held_place() -> None:
    one = measured()
    now = return_often(one, 30.0, 0.0, MIN_RETURNS - 1)
    assert not one.is_suspended
    return_often(one, 30.0, now + 30.0, 0)
    assert one.is_suspended


def test_returns_while_no_turn_waits_do_not_suspend_scheduling() -> None:
    """Monitoring, or a conversation on an idle server: nothing is short."""
    one, now = measured(), 0.0
    for _ in range(10 * MIN_RETURNS):
        one.finish(arrive(one, "probe", 5, now), TurnEnd(5, waits_for_user=True), now + 1.0)
        now += 60.0
    assert not one.is_suspended


def test_scheduling_is_not_suspended_before_the_rate_of_prefill_is_measured() -> None:
    one = SessionScheduler(1_000, LIMITS)
    return_often(one, 30.0, 0.0, 10 * MIN_RETURNS)
    assert not one.is_suspended


def test_no_turn_waits_while_scheduling_is_suspended() -> None:
    one, now = suspended()
    delayed, forced = one.counters.delayed, one.counters.forced
    turns = [arrive(one, f"s{number}", 900, now) for number in range(20)]
    assert {turn.state for turn in turns} == {"running"}
    assert (one.waiting_turns, one.counters.delayed, one.counters.forced) == (0, delayed, forced)
    assert [turn.has_room for turn in turns] == [True] + [False] * 19
    for turn in turns:
        one.finish(turn, TurnEnd(900, BASH), now + 1.0)
    assert one.used_tokens <= 1_000


def test_turns_that_wait_run_when_scheduling_is_suspended() -> None:
    one = measured()
    now = return_often(one, 30.0, 0.0, MIN_RETURNS - 1)
    arrive(one, "long", 990, now)
    waiting = [arrive(one, f"s{number}", 500, now) for number in range(3)]
    assert {turn.state for turn in waiting} == {"waiting"}
    assert arrive(one, "back", 100, now + 30.0).state == "running"
    assert one.admit(now + 30.0) == waiting
    assert one.next_deadline(now + 30.0) is None


def test_scheduling_continues_when_sessions_return_in_time() -> None:
    one, now = suspended()
    now = return_often(one, 0.5, now + 0.5)
    assert not one.is_suspended
    arrive(one, "a", 800, now)
    assert arrive(one, "b", 800, now).state == "waiting"


def test_large_sessions_that_are_held_outweigh_small_ones_that_are_not() -> None:
    one, now = SessionScheduler(10_000, LIMITS), 0.0
    measure_prefill(one)
    sizes = {"large": 5_000} | {f"s{number}": 20 for number in range(12)}
    for _ in range(MIN_RETURNS):
        for name, tokens in sizes.items():
            blocked = arrive(one, "blocked", 9_999, now)
            turn = arrive(one, name, tokens, now)
            one.cancel(blocked, now)
            one.admit(now)
            end = TurnEnd(tokens, BASH if name == "large" else (), name != "large")
            one.finish(turn, end, now + 0.5)
        now += 1.0
        assert not one.is_suspended


def test_time_in_the_queue_of_the_engine_is_no_time_of_a_turn() -> None:
    one, now = suspended()
    other = arrive(one, "other", 900, now)
    turn = arrive(one, "slow", 900, now)
    turn.begin_output(now + 9_999.0)
    one.finish(turn, TurnEnd(900, BASH), now + 10_000.0)
    one.cancel(other, now + 10_000.0)
    now = return_often(one, 0.5, now + 10_000.0)
    assert not one.is_suspended
    unknown = TurnEnd(100, (("other", ""),))
    assert one.finish(arrive(one, "fresh", 100, now), unknown, now + 1.0) == pytest.approx(2.0)


def test_scheduling_continues_after_long_outputs_once_they_are_short() -> None:
    """Turns are also measured while it is suspended."""
    one, now = measured(), 0.0
    for _ in range(100):
        turn = arrive(one, "chat", 100, now)
        turn.begin_output(now)
        one.finish(turn, TurnEnd(100, waits_for_user=True), now + 400.0)
        now += 1_000.0
    now = return_often(one, 0.5, now)
    assert one.is_suspended  # the load of prefill seems to be low, so places are hardly held
    for number in range(100):
        turn = arrive(one, f"agent{number}", 100, now)
        turn.begin_output(now)
        one.finish(turn, TurnEnd(100, BASH), now + 2.0)
        now += 2.0
    return_often(one, 0.5, now)
    assert not one.is_suspended


def test_state_does_not_change_again_before_eight_more_returns() -> None:
    returns = HeldReturns()
    states = [observe(returns, is_held) for is_held in [False] * 8 + [True] * 8 + [False] * 40]
    assert states[6:8] == [False, True]
    assert states[14:16] == [True, False]
    assert states[22:24] == [False, False]  # most of what returned lately was held
    assert states[-1]


def observe(returns: HeldReturns, is_held: bool) -> bool:
    returns.observe(100, is_held=is_held)
    return returns.is_useless


@pytest.mark.parametrize("is_useless", [True, False])
def test_state_stays_while_a_fifth_is_held(is_useless: bool) -> None:
    returns = HeldReturns()
    for _ in range(100):
        observe(returns, not is_useless)
    assert {observe(returns, number % 5 == 0) for number in range(100)} == {is_useless}
    assert {observe(returns, True) for _ in range(50)} >= {False}
    assert {observe(returns, False) for _ in range(50)} >= {True}


def test_time_of_turns_with_room_begins_with_their_admission() -> None:
    one = SessionScheduler(1_000, LIMITS)
    for number in range(200):
        turn = arrive(one, f"s{number}", 100, 0.0)
        turn.begin_output(19.0)
        one.finish(turn, TurnEnd(100, BASH), 20.0)
        one.release(f"s{number}", 20.0)
    # The load is 10 s of prefill per 20 s of a turn, which holds places for 0.75 s.
    assert one.finish(arrive(one, "last", 100, 20.0), TurnEnd(100, (("other", ""),)), 40.0) == (
        pytest.approx(0.75, rel=0.01)
    )


def test_first_of_several_requests_of_a_turn_begins_its_output() -> None:
    turn = arrive(SessionScheduler(None, LIMITS), "a", 100, 0.0)
    turn.begin_output(1.0)
    turn.begin_output(12.0)
    assert turn.first_token_at == 1.0


def test_session_above_the_capacity_that_runs_alone_does_not_wait_in_the_engine() -> None:
    one = SessionScheduler(1_000, LIMITS)
    first = arrive(one, "a", 3_000, 0.0)
    second = arrive(one, "b", 3_000, 0.0)
    assert (first.has_room, second.state) == (True, "waiting")
    one.finish(first, TurnEnd(3_000, BASH), 300.0)
    assert one.admit(300.0) == [second]
    assert second.has_room


@pytest.mark.parametrize(
    ("session", "tokens", "now", "can_run"),
    [
        ("new", 100, 0.0, True),  # free
        ("new", 101, 0.0, False),  # the others are held, or run
        ("new", 300, 5.0, True),  # of one that is not held any more
        ("new", 301, 5.0, False),
        ("new", 300, 1.5, True),  # held until exactly then
        ("idle", 300, 5.0, True),  # its own place
        ("idle", 301, 5.0, False),  # which it cannot take from itself
    ],
)
def test_room_for_turns_of_other_replicas(
    session: str, tokens: int, now: float, can_run: bool
) -> None:
    one = SessionScheduler(1_000, LIMITS)
    arrive(one, "runs", 700, 0.0)
    turn = arrive(one, "idle", 200, 0.0)
    one.finish(turn, TurnEnd(200, BASH, return_seconds=0.5), 0.0)
    assert one.can_run(TurnArrival(session, tokens), now) is can_run


def test_turn_above_the_capacity_can_run_alone() -> None:
    one = SessionScheduler(1_000, LIMITS)
    large = TurnArrival("large", 3_000)
    assert one.can_run(large, 0.0)
    turn = arrive(one, "a", 200, 0.0)
    assert not one.can_run(large, 0.0)
    one.finish(turn, TurnEnd(200, BASH, return_seconds=0.5), 0.0)
    assert not one.can_run(large, 0.0)
    assert one.can_run(TurnArrival("a", 3_000), 0.0)
    assert one.can_run(large, 5.0)


def test_restart_of_the_engine_ends_the_suspension() -> None:
    one, now = suspended()
    one.reset()
    one.set_capacity(900)
    assert not one.is_suspended
    arrive(one, "a", 800, now)
    assert arrive(one, "b", 800, now).state == "waiting"


def test_sessions_that_return_in_time_after_a_restart_do_not_suspend_scheduling() -> None:
    """Their places would have been held, had the engine not lost what it had cached."""
    one = SessionScheduler(10_000, LIMITS)
    measure_prefill(one)
    names = [f"s{number}" for number in range(2 * MIN_RETURNS)]
    for name in names:
        end = TurnEnd(100, BASH, return_seconds=0.5)
        assert one.finish(arrive(one, name, 100, 0.0), end, 1.0) == 1.5
    one.reset()
    arrive(one, "large", 10_001, 1.0)
    assert [arrive(one, name, 100, 1.5).state for name in names] == ["waiting"] * len(names)
    assert not one.is_suspended


def test_unknown_capacity_is_never_suspended() -> None:
    one = SessionScheduler(None, LIMITS)
    measure_prefill(one)
    return_often(one, 30.0, 0.0, 3 * MIN_RETURNS)
    assert not one.is_suspended


def test_time_of_a_session_with_a_waiting_turn_is_not_a_tool_time() -> None:
    one = SessionScheduler(1_000, LIMITS)
    running = arrive(one, "a", 600, 0.0)
    other = arrive(one, "a", 900, 0.0)
    blocked = arrive(one, "b", 990, 0.0)
    assert (other.state, blocked.state) == ("running", "waiting")
    third = arrive(one, "a", 950, 1.0)
    assert third.state == "waiting"
    one.finish(running, TurnEnd(600, BASH), 2.0)
    one.finish(other, TurnEnd(900, BASH), 2.0)
    later = arrive(one, "a", 900, 102.0)
    assert later.actual_seconds is None
    assert one.tool_times.quantile(BASH, 0.5, 102.0) is None


def hold_factor(one: SessionScheduler) -> float:
    """Return for how long a place is held, relative to the rate of prefill."""
    seconds, _ = one._holds.predict(TurnEnd(100), 1_000, 0.0)
    return seconds / one.prefill_rate.seconds(100) / one.prefill_rate.seconds(1_000)


def test_nothing_is_prefilled_ahead_while_scheduling_is_suspended() -> None:
    """More is cached than fits: a prefill would evict the prefix of another session."""

    async def scene() -> list[bool]:
        sessions = SessionAdmission(kv_tokens=1_000)
        sessions.add_replica(0, "e", None)
        ((_, scheduler),) = sessions.schedulers()
        has_delayed = [sessions.has_delayed_turns]
        scheduler.counters.delayed = 1
        has_delayed.append(sessions.has_delayed_turns)
        suspend(scheduler, 0.0)
        has_delayed.append(sessions.has_delayed_turns)
        sessions.stop()
        return has_delayed

    assert run_jumping(scene()) == [False, True, False]


@pytest.mark.parametrize("has_room", [True, False])
def test_engine_is_measured_on_turns_that_do_not_wait_in_it(has_room: bool) -> None:
    """Others are not counted as prefill from when they were sent, nor as a turn."""

    async def scene() -> None:
        sessions = SessionAdmission(kv_tokens=1_000, limits=replace(LIMITS, hold_factor=1e6))
        sessions.add_replica(0, "e", None)
        ((_, scheduler),) = sessions.schedulers()
        suspend(scheduler, asyncio.get_running_loop().time() - 10_000.0)
        scheduler.release("large", asyncio.get_running_loop().time())
        scheduler.arrive(TurnArrival("other", 100 if has_room else 900), 0.0)
        request = Agent("a").request(0, 500)
        turn = sessions.begin_turn(TurnProfile("a", "a#0", "", "head"))
        assert await turn.enter(0, request)
        before, factor = scheduler.prefill_rate.tokens_per_second, hold_factor(scheduler)
        turn.measure_prefill(request, Sink())  # fails, and is sent again
        sink = turn.measure_prefill(request, Sink())
        await asyncio.sleep(50.0)
        sink.push(TokenDelta([1], cached=0))
        assert (scheduler.prefill_rate.tokens_per_second < before) is has_room
        now = asyncio.get_running_loop().time()
        assert scheduler.prefill_rate.end_queued(now, now) is None  # the engine prefills nothing
        await asyncio.sleep(20.0)
        turn.finish(TurnEnd(501, BASH))
        # A turn of 70 s counts as such, or as one of 20 s.
        low, high = (0.1, 0.25) if has_room else (0.25, 0.6)
        assert low < hold_factor(scheduler) / factor < high
        sessions.stop()

    run_jumping(scene())


class CountingEngine(TimedEngine):
    """Reports prompts as prefilled at once, which is measured."""

    async def generate(self, request: Any, sink: Any) -> None:
        sink.push(TokenDelta([], cached=0))
        await super().generate(request, sink)


def run_agents(agents: list[Agent], capacity: int, engine: TimedEngine) -> SessionAdmission:
    sessions = SessionAdmission(kv_tokens=capacity)

    async def scene() -> None:
        pool = ReplicaPool(
            [engine], urls=["http://e"], health_checks=FAST_RECOVERY, sessions=sessions
        )
        await pool.start()
        await asyncio.gather(*(agent.run(pool) for agent in agents))
        await pool.stop()

    run_jumping(scene())
    return sessions


def agents_of(count: int, turns: int) -> list[Agent]:
    growth = (300, *[1] * (turns - 1))
    return [Agent(f"a{n}", growth, (0.5,) * (turns - 1)) for n in range(count)]


def test_sessions_stop_waiting_when_prefill_is_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail.routing")
    agents, engine = agents_of(6, 20), CountingEngine(None)
    sessions = run_agents(agents, 1_000, engine)
    ((_, scheduler),) = sessions.schedulers()
    assert scheduler.is_suspended
    assert scheduler.counters.delayed
    for agent in agents:
        (*_, before, last) = agent.ended
        assert last - before == pytest.approx(1.5)  # the tool and the turn
    (record,) = [one for one in caplog.records if one.getMessage().startswith("session_sched")][1:]
    assert record.getMessage() == "session_scheduling_suspended"
    fields: dict[str, object] = vars(record)["fields"]
    assert {"engine", "replica", "prefill_tokens_per_second"} == set(fields)


def test_engine_without_cached_tokens_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its sessions wait, because the rate of prefill is not known."""

    class SilentEngine(TimedEngine):
        async def generate(self, request: Any, sink: Any) -> None:
            class Silent(Sink):
                def push(self, delta: TokenDelta) -> bool:
                    return bool(sink.push(TokenDelta(delta.ids, finish=delta.finish)))

            await super().generate(request, Silent())

    agents = agents_of(6, UNMEASURED_TURNS)
    sessions = run_agents(agents, 1_000, SilentEngine(None))
    ((_, scheduler),) = sessions.schedulers()
    assert not scheduler.is_suspended
    (record,) = [one for one in caplog.records if one.getMessage() == "prefill_rate_unknown"]
    assert "--enable-prompt-tokens-details" in str(vars(record)["fields"]["remedy"])


@pytest.mark.parametrize("free", [True, False])
def test_suspended_replica_takes_over_turns_for_which_it_has_room(free: bool) -> None:
    """It would run any number of them."""

    async def scene() -> None:
        engines = [TimedEngine(1_000), TimedEngine(1_000)]
        sessions = SessionAdmission()
        urls = ["http://a", "http://b"]
        pool = ReplicaPool(engines, urls=urls, health_checks=FAST_RECOVERY, sessions=sessions)
        await pool.start()
        target = dict(sessions.schedulers())[1]
        now = suspend(target, asyncio.get_running_loop().time() - 10_000.0)
        target.release("large", now)
        target.arrive(TurnArrival("other", 100 if free else 500), now)
        for one in pool.replicas:
            pool.router.load(one.index).output_tokens = 0 if one.index == 0 else 10**9
        tasks = []
        for number in range(4):
            agent = Agent(f"n{number}")
            begun = agent.begin(pool)
            assert begun is not None
            request = agent.request(0, 800)
            tasks.append(asyncio.create_task(pool.generate(request, Sink(), turn=begun)))
        await asyncio.sleep(0.5)
        assert len(engines[0].received) == 1
        assert len(engines[1].received) == free
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.stop()

    run_jumping(scene())


def test_turn_that_cannot_move_leaves_the_place_of_its_session_held() -> None:
    async def scene() -> None:
        engines = [TimedEngine(1_000), TimedEngine(1_000)]
        sessions = SessionAdmission(limits=LIMITS)
        pool = ReplicaPool(engines, urls=["http://a", "http://b"], sessions=sessions)
        await pool.start()
        source, target = (sessions.queue(index) for index in range(2))
        assert source is not None
        assert target is not None
        now = asyncio.get_running_loop().time()
        busy = target.scheduler.arrive(TurnArrival("busy", 600), now)
        target.scheduler.finish(
            target.scheduler.arrive(TurnArrival("a", 300), now),
            TurnEnd(300, BASH, return_seconds=0.1),
            now,
        )
        source.scheduler.arrive(TurnArrival("full", 1_000), now)
        moving = source.scheduler.arrive(TurnArrival("a", 800), now)
        before = target.scheduler.sessions(now)
        assert not target.take_over(moving, source)
        assert target.scheduler.sessions(now) == before
        assert {one.session: one.status for one in before} == {"busy": "running", "a": "held"}
        assert busy.state == "running"
        await pool.stop()

    run_jumping(scene())


def test_engine_keeps_nothing_for_sessions_while_scheduling_is_suspended() -> None:
    retained: list[tuple[str, float]] = []

    async def scene() -> None:
        sessions = SessionAdmission(kv_tokens=1_000, limits=LIMITS)
        sessions.add_replica(0, "e", None, lambda *call: retained.append(call))
        queue = sessions.queue(0)
        assert queue is not None
        for is_suspended in (False, True):
            if is_suspended:
                suspend(queue.scheduler, asyncio.get_running_loop().time() - 10_000.0)
            turn = queue.arrive(TurnArrival("a", 100))
            end = TurnEnd(100 + OUTPUT_TOKENS, BASH, return_seconds=0.1)
            queue.finish(turn, end, f"request {is_suspended}")
        sessions.stop()

    run_jumping(scene())
    (before, seconds), suspended_call = retained
    assert before == "request False"
    assert seconds > 0
    assert suspended_call == ("request True", 0.0)
