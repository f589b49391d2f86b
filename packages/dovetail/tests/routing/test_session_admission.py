"""Session scheduling in a pool: capacity, waiting, replica loss, restarts. Time is virtual."""

import asyncio
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_clock_loop import run_jumping
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_sessions import FAST_RECOVERY, Agent, Sink, TimedEngine

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineRequest,
)
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.session_admission import SessionAdmission
from dovetail.routing.session_turns import SchedulingLimits, TurnEnd, TurnProfile
from dovetail_model import EngineUnavailable

PATIENT = SchedulingLimits(max_wait_seconds=1e6, rotation_seconds=1e5)


def run_agents(
    agents: Sequence[Agent],
    engines: Sequence[TimedEngine],
    sessions: SessionAdmission | None,
    disturb: Coroutine[Any, Any, None] | None = None,
) -> ReplicaPool:
    """Run all agents to their end. Raises if one of them waits forever."""
    urls = [f"http://engine-{at}" for at in range(len(engines))]

    async def scene() -> ReplicaPool:
        pool = ReplicaPool(engines, urls=urls, health_checks=FAST_RECOVERY, sessions=sessions)
        await pool.start()
        disturbance = asyncio.create_task(disturb) if disturb is not None else None
        await asyncio.gather(*(agent.run(pool) for agent in agents))
        if disturbance is not None:
            await disturbance
        if sessions is not None:
            assert not any(one.running_turns for _, one in sessions.schedulers())
            assert not any(one.waiting_turns for _, one in sessions.schedulers())
            for replica in range(len(engines)):
                queue = sessions.queue(replica)
                assert queue is None or not queue._waiting
        await pool.stop()
        return pool

    return run_jumping(scene())


AGENTS = st.lists(
    st.builds(
        Agent,
        name=st.uuids().map(str),
        # Shorter prompts than those that show the rate of prefill: scheduling is not suspended.
        growth=st.lists(st.integers(1, 56), min_size=1, max_size=4),
        gaps=st.lists(st.sampled_from([0.1, 0.7, 5.0, 60.0]), max_size=3),
        tenant=st.sampled_from(["", "a", "b"]),
        background=st.booleans(),
        starts_at=st.floats(0, 5),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(AGENTS, st.integers(60, 400))
def test_running_sessions_fit_into_the_kv_cache_and_all_of_them_end(
    agents: list[Agent], capacity: int
) -> None:
    engine = TimedEngine(capacity)
    run_agents(agents, [engine], SessionAdmission(limits=PATIENT))
    assert not engine.overcommitted
    assert len(engine.received) == sum(len(agent.growth) for agent in agents)


@settings(max_examples=60, deadline=None)
@given(AGENTS)
def test_without_shortage_the_engine_receives_the_same_requests_in_the_same_order(
    agents: list[Agent],
) -> None:
    plain, scheduled = TimedEngine(None), TimedEngine(100_000)
    run_agents([replace(one, ended=[]) for one in agents], [plain], None)
    sessions = SessionAdmission()
    run_agents(agents, [scheduled], sessions)
    assert scheduled.received == plain.received
    assert sessions.stats.waits.sum == 0


@settings(max_examples=40, deadline=None)
@given(AGENTS, st.lists(st.floats(0.1, 20), min_size=1, max_size=4), st.integers(1, 2))
def test_sessions_end_although_replicas_fail_and_restart(
    agents: list[Agent], failures: list[float], replicas: int
) -> None:
    engines = [TimedEngine(300) for _ in range(replicas)]

    async def disturb() -> None:
        for number, delay in enumerate(failures):
            engine = engines[number % replicas]
            await asyncio.sleep(delay)
            engine.fail()
            await asyncio.sleep(2.0)
            engine.recover()

    run_agents(agents, engines, SessionAdmission(limits=PATIENT), disturb())
    assert all(len(agent.ended) == len(agent.growth) for agent in agents)


@settings(max_examples=30, deadline=None)
@given(AGENTS, st.sampled_from([1, 20, 10**9]))
def test_sessions_end_with_a_capacity_that_is_wrong(agents: list[Agent], capacity: int) -> None:
    limits = SchedulingLimits(max_wait_seconds=30, rotation_seconds=10)
    sessions = SessionAdmission(capacity, limits)
    run_agents(agents, [TimedEngine(300)], sessions)
    assert all(len(agent.ended) == len(agent.growth) for agent in agents)


def test_wait_of_a_turn_is_limited() -> None:
    # The holder's turns never end: its engine is busy until the failure at the end.
    engine = TimedEngine(100)
    waits: list[float] = []

    async def scene() -> None:
        sessions = SessionAdmission(limits=SchedulingLimits(max_wait_seconds=7.0))
        pool = ReplicaPool([engine], sessions=sessions)
        await pool.start()
        first, second = Agent("first"), Agent("second")
        held, waiting = first.begin(pool), second.begin(pool)
        assert held is not None
        assert waiting is not None
        assert await held.enter(0, first.request(0, 80))
        assert await waiting.enter(0, second.request(0, 80))
        waits.append(asyncio.get_running_loop().time())
        held.cancel(release=True)
        waiting.cancel(release=True)
        assert not list(sessions.sessions())
        await pool.stop()

    run_jumping(scene())
    assert waits == [7.0]


def test_turn_that_must_not_wait_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    agents = [Agent("one", (80,), ()), Agent("two", (80,), ())]
    sessions = SessionAdmission(limits=replace(PATIENT, max_wait_seconds=0.0))
    run_agents(agents, [TimedEngine(100)], sessions)
    assert sessions.expired_waits == 1
    (record,) = [one for one in caplog.records if one.getMessage() == "session_wait_expired"]
    assert vars(record)["fields"]["wait_ms"] == 0


@pytest.mark.parametrize(("pause", "runs_at"), [(5.0, 50.0), (100.0, 290.0)])
def test_retry_continues_the_wait_that_its_client_has_given_up(
    pause: float, runs_at: float
) -> None:
    async def scene() -> float:
        sessions = SessionAdmission(100, SchedulingLimits(max_wait_seconds=50.0))
        pool = ReplicaPool([TimedEngine(None)], sessions=sessions)
        await pool.start()
        holder, retrying = Agent("holder").begin(pool), Agent("retrying")
        assert holder is not None
        assert await holder.enter(0, Agent("holder").request(0, 80))
        for _ in range(2):
            turn = retrying.begin(pool)
            assert turn is not None
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(turn.enter(0, retrying.request(0, 80)), 20.0)
            turn.cancel(release=True)
            await asyncio.sleep(pause)
        turn = retrying.begin(pool)
        assert turn is not None
        assert await turn.enter(0, retrying.request(0, 80))
        turn.cancel(release=True)
        assert sessions.continue_wait("retrying#0") is None
        await pool.stop()
        return asyncio.get_running_loop().time()

    assert run_jumping(scene()) == runs_at


def test_cancelled_wait_leaves_no_trace() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(100)
        pool = ReplicaPool([TimedEngine(None)], sessions=sessions)
        await pool.start()
        first, second = Agent("first"), Agent("second")
        held, waiting = first.begin(pool), second.begin(pool)
        assert held is not None
        assert waiting is not None
        assert await held.enter(0, first.request(0, 80))
        task = asyncio.create_task(pool.generate(second.request(0, 80), Sink(), turn=waiting))
        await asyncio.sleep(0.5)
        assert sessions.has_waiting_turns(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        waiting.cancel(release=True)
        assert not sessions.has_waiting_turns(0)
        assert [state.session for _, state in sessions.sessions()] == ["first#0"]
        load = pool.router.load(0)
        assert (load.queued_tokens, load.output_tokens) == (0, 0)
        held.cancel(release=True)
        await pool.stop()

    run_jumping(scene())


def test_nothing_is_prefilled_ahead_while_a_turn_waits() -> None:
    async def create_request() -> EngineRequest:
        return Agent("ahead").request(0, 10)

    async def scene() -> list[str]:
        engine, sessions = TimedEngine(None), SessionAdmission(100)
        pool = ReplicaPool([engine], sessions=sessions)
        await pool.start()
        holder, turn = Agent("holder").begin(pool), Agent("second").begin(pool)
        assert holder is not None
        assert await holder.enter(0, Agent("holder").request(0, 80))
        second = pool.generate(Agent("second").request(0, 80), Sink(), turn=turn)
        task = asyncio.create_task(second)
        await asyncio.sleep(0.5)
        pool.warm("holder", create_request)
        await asyncio.sleep(5.0)
        holder.cancel(release=True)
        await task
        pool.warm("second", create_request)
        await asyncio.sleep(5.0)
        await pool.stop()
        return engine.received

    assert run_jumping(scene()) == ["second-0", "ahead-0"]


@pytest.mark.parametrize("remove", [False, True], ids=["failed", "removed"])
def test_waiting_turns_move_to_another_replica_when_theirs_is_lost(remove: bool) -> None:
    engines = [TimedEngine(100), TimedEngine(100)]

    async def scene() -> None:
        sessions = SessionAdmission()
        pool = ReplicaPool(engines, urls=["http://a", "http://b"], sessions=sessions)
        await pool.start()
        agents = [Agent(name) for name in ("first", "second", "third")]
        turns = [agent.begin(pool) for agent in agents]
        for at, turn in enumerate(turns):
            assert turn is not None
            if at < 2:  # the two replicas are full
                assert await turn.enter(at, agents[at].request(0, 80))
        pool.router.release_session("third", 0.0)
        task = asyncio.create_task(pool.generate(agents[2].request(0, 80), Sink(), turn=turns[2]))
        await asyncio.sleep(0.5)
        waits_at = next(at for at in (0, 1) if sessions.has_waiting_turns(at))
        replica = pool.replicas[waits_at]
        if remove:
            pool.remove_replica(replica)
        else:
            replica.mark_down(EngineUnavailable("gone"))
        await asyncio.sleep(0.1)
        other = 1 - waits_at
        assert sessions.has_waiting_turns(other)
        assert not sessions.has_waiting_turns(waits_at)
        turns[other].cancel(release=True)  # type: ignore[union-attr]
        await task
        assert engines[other].received[-1] == "third-0"
        await pool.stop()

    run_jumping(scene())


def test_migrated_turn_does_not_wait_again() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(100)
        pool = ReplicaPool(
            [TimedEngine(None), TimedEngine(None)], urls=["http://a", "http://b"], sessions=sessions
        )
        await pool.start()
        first, second = Agent("first"), Agent("second")
        moved, other = first.begin(pool), second.begin(pool)
        assert moved is not None
        assert other is not None
        assert await moved.enter(0, first.request(0, 80))
        assert await other.enter(1, second.request(0, 80))
        assert await moved.enter(1, first.request(0, 85))
        assert asyncio.get_running_loop().time() == 0.0
        assert [one.running_turns for _, one in sessions.schedulers()] == [0, 2]
        await pool.stop()

    run_jumping(scene())


def test_restarted_engine_may_have_another_capacity() -> None:
    engine = TimedEngine(100)

    async def scene() -> None:
        sessions = SessionAdmission()
        pool = ReplicaPool([engine], sessions=sessions, health_checks=FAST_RECOVERY)
        await pool.start()
        first, second = Agent("first"), Agent("second")
        turns = first.begin(pool), second.begin(pool)
        assert turns[0] is not None
        assert turns[1] is not None
        await turns[0].enter(0, first.request(0, 80))
        task = asyncio.create_task(pool.generate(second.request(0, 80), Sink(), turn=turns[1]))
        await asyncio.sleep(0.1)
        assert sessions.has_waiting_turns(0)
        engine.capabilities = EngineCapabilities(kv_tokens=1000)
        pool.replicas[0].mark_down(EngineUnavailable("restarted"))
        await task
        assert [one.capacity_tokens for _, one in sessions.schedulers()] == [1000]
        await pool.stop()

    run_jumping(scene())


def order_of_admission(*agents: Agent) -> list[str]:
    """Return the order in which agents run whose turns wait for the same place."""
    engine = TimedEngine(None)
    holder = Agent("holder", growth=(150,), gaps=())
    run_agents([holder, *agents], [engine], SessionAdmission(200, PATIENT))
    assert engine.received[0] == "holder-0"
    return [name.removesuffix("-0") for name in engine.received[1:]]


def waiting(name: str, at: float, **more: Any) -> Agent:
    return Agent(name, growth=(150,), gaps=(), starts_at=at, **more)


def test_more_urgent_turns_run_first() -> None:
    agents = waiting("low", 0.1), waiting("high", 0.2, urgency=5)
    assert order_of_admission(*agents) == ["high", "low"]


def test_interactive_turns_run_before_background_turns() -> None:
    agents = waiting("background", 0.1, background=True), waiting("interactive", 0.2)
    assert order_of_admission(*agents) == ["interactive", "background"]


def test_expected_output_is_reserved() -> None:
    def concurrent(expected_tokens: int) -> bool:
        agents = [
            Agent(name, growth=(50,), gaps=(), expected_tokens=expected_tokens)
            for name in ("one", "two")
        ]
        run_agents(agents, [TimedEngine(None)], SessionAdmission(150))
        return agents[0].ended == agents[1].ended

    assert concurrent(20)
    assert not concurrent(40)


@pytest.mark.parametrize(
    ("expected", "choices", "reserved"),
    [(40, 1, 40), (40, 3, 120), (1_000, 1, 100), (None, 1, 100)],
)
def test_output_is_reserved_for_each_choice_up_to_its_limit(
    expected: int | None, choices: int, reserved: int
) -> None:
    async def scene() -> None:
        sessions = SessionAdmission(10_000)
        sessions.add_replica(0, "engine", None)
        turn = sessions.begin_turn(TurnProfile("a", "a#0", "", "head", choices=choices))
        prompt = array("I", [1] * 50)
        assert await turn.enter(0, EngineRequest("r", prompt, 100, expected_tokens=expected))
        ((_, scheduler),) = sessions.schedulers()
        assert scheduler.used_tokens == 50 + reserved
        sessions.stop()

    run_jumping(scene())


def test_reserved_output_is_learned() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(10_000)
        sessions.add_replica(0, "engine", None)
        request = EngineRequest("r", array("I", [1] * 50), 5_000)
        for _ in range(200):
            turn = sessions.begin_turn(TurnProfile("a", "a#0", "", "head"))
            assert await turn.enter(0, request)
            turn.finish(TurnEnd(50 + 2_000))
        assert sessions.expected_output_tokens(request) == pytest.approx(2_000, rel=0.01)
        sessions.stop()

    run_jumping(scene())


def test_return_of_a_session_is_predicted_and_measured() -> None:
    sessions = SessionAdmission(10_000)
    agent = Agent("one", growth=(10,) * 6, gaps=(3.0,) * 5)
    run_agents([agent], [TimedEngine(None)], sessions)
    stats = sessions.stats
    assert stats.actual.count == stats.predicted.count >= 2
    assert stats.actual.sum == 3.0 * stats.actual.count
    assert stats.predicted.sum >= stats.actual.sum  # quantiles are rounded up to bucket limits


def test_shared_head_is_counted_once() -> None:
    async def scene() -> None:
        sessions = SessionAdmission(10_000)
        pool = ReplicaPool([TimedEngine(None)], sessions=sessions)
        await pool.start()
        head = array("I", range(100))
        for name in ("one", "two", "three"):
            turn = sessions.begin_turn(TurnProfile(name, f"{name}#0", "", "head"))
            prompt = head + array("I", [len(name) + 1000] * 20)
            assert await turn.enter(0, EngineRequest(name, prompt, 10, expected_tokens=0))
        ((_, scheduler),) = sessions.schedulers()
        # The first session cannot know what others will share with it.
        assert scheduler.used_tokens <= 120 + 100 + 2 * 20
        await pool.stop()

    run_jumping(scene())


class RetainingTimedEngine(TimedEngine):
    """Records what it is requested to retain."""

    def __init__(self) -> None:
        super().__init__(None)
        self.retained: list[tuple[str, float]] = []

    def retain(self, request: str, seconds: float) -> None:
        self.retained.append((request, seconds))


def test_engine_receives_the_time_for_which_a_place_is_held() -> None:
    async def scene() -> list[tuple[str, float]]:
        engine, sessions = RetainingTimedEngine(), SessionAdmission(100_000)
        pool = ReplicaPool([engine], sessions=sessions)
        await pool.start()
        ends = {
            "tool": TurnEnd(1_000, (("Read", ""),)),
            "user": TurnEnd(1_000, waits_for_user=True),
        }
        for name, end in ends.items():
            turn = sessions.begin_turn(TurnProfile(name, f"{name}#0", "", "head"))
            prompt = array("I", [len(name)] * 1_000)
            assert await turn.enter(0, EngineRequest(f"request of {name}", prompt, 10))
            turn.finish(end)
        turn = sessions.begin_turn(TurnProfile("disconnected", "disconnected#0", "", "head"))
        assert await turn.enter(0, EngineRequest("disconnected request", array("I", [1]), 10))
        turn.cancel(release=True)
        await pool.stop()
        return engine.retained

    (request, seconds), *rest = run_jumping(scene())
    assert request == "request of tool"
    assert seconds > 0
    assert rest == [("request of user", 0.0), ("disconnected request", 0.0)]
