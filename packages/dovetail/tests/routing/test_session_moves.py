"""Session scheduling with several replicas: which turns move, and what failures leave behind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_clock_loop import run_jumping
from timed_sessions import FAST_RECOVERY, OUTPUT_TOKENS, Agent, Sink, TimedEngine

from dovetail.routing.pool import ReplicaPool
from dovetail.routing.session_admission import (
    MAX_BRANCHES,
    SessionAdmission,
    SessionTurn,
)
from dovetail.routing.session_turns import TurnEnd, TurnProfile
from dovetail_model import EngineUnavailable, InvalidEngineResponse

HUGE_LOAD = 10**9
CAPACITY, LARGE = 1000, 800  # two such prompts do not fit


class Scene:
    """A pool whose replicas have room for one large prompt each."""

    def __init__(self, pool: ReplicaPool, engines: list[TimedEngine]) -> None:
        self.pool = pool
        self.engines = engines
        assert pool.sessions is not None
        self.sessions = pool.sessions
        self.turns: dict[str, SessionTurn] = {}

    async def occupy(self, replica: int, name: str = "holder", tokens: int = LARGE) -> SessionTurn:
        """Run a turn that does not end by itself."""
        agent = Agent(name)
        turn = agent.begin(self.pool)
        assert turn is not None
        assert await turn.enter(replica, agent.request(0, tokens))
        return turn

    def send(self, name: str, tokens: int = LARGE) -> asyncio.Task[None]:
        """Send a turn through the pool."""
        agent = Agent(name)
        turn = agent.begin(self.pool)
        assert turn is not None
        self.turns[name] = turn

        async def generate() -> None:
            await self.pool.generate(agent.request(0, tokens), Sink(), turn=turn)
            turn.finish(TurnEnd(tokens + OUTPUT_TOKENS, tool_keys=(("bash", "ls"),)))

        return asyncio.create_task(generate())

    def prefer(self, replica: int) -> None:
        """Let the router assign new sessions to one replica."""
        for one in self.pool.replicas:
            self.pool.router.load(one.index).output_tokens = (
                0 if one.index == replica else HUGE_LOAD
            )


@asynccontextmanager
async def replicas(count: int) -> AsyncIterator[Scene]:
    engines = [TimedEngine(CAPACITY) for _ in range(count)]
    urls = [f"http://engine-{at}" for at in range(count)]
    sessions = SessionAdmission()
    pool = ReplicaPool(engines, urls=urls, health_checks=FAST_RECOVERY, sessions=sessions)
    await pool.start()
    yield Scene(pool, engines)
    await pool.stop()


def run(count: int, scene: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with replicas(count) as prepared:
            await scene(prepared)

    run_jumping(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_turn_of_a_new_session_runs_where_there_is_room() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        it.prefer(0)
        await it.send("new")
        assert it.engines[1].received == ["new-0"]
        assert now() == 1.0  # the time of the turn itself
        assert it.pool.router.home("new") == 1
        assert {one.session for at, one in it.sessions.sessions() if at == 0} == {"holder#0"}

    run(2, scene)


def test_added_replica_takes_over_waiting_turns() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        tasks = [it.send(name) for name in ("one", "two")]
        await asyncio.sleep(0.1)
        added = TimedEngine(2 * CAPACITY)
        await it.pool.add_replica(added, "http://added")
        await asyncio.gather(*tasks)
        assert sorted(added.received) == ["one-0", "two-0"]
        assert not it.sessions.has_waiting_turns(0)

    run(1, scene)


def test_recovered_replica_takes_over_waiting_turns() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        it.engines[1].is_up = False
        it.pool.replicas[1].mark_down(EngineUnavailable("gone"))
        task = it.send("new")
        await asyncio.sleep(3.0)
        assert it.sessions.has_waiting_turns(0)
        it.engines[1].is_up = True
        await task
        assert it.engines[1].received == ["new-0"]

    run(2, scene)


def test_replica_takes_over_a_turn_when_its_own_turn_ends() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        other = await it.occupy(1, "other")
        it.prefer(0)
        task = it.send("new")
        await asyncio.sleep(2.0)
        assert it.sessions.has_waiting_turns(0)
        other.cancel(release=True)
        await task
        assert it.engines[1].received == ["new-0"]
        assert it.sessions.stats.waits.sum == 2.0

    run(2, scene)


def test_turn_whose_session_has_a_place_waits_for_it() -> None:
    async def scene(it: Scene) -> None:
        it.prefer(0)
        await it.send("one", 300)
        holder = await it.occupy(0, tokens=500)
        task = it.send("one", 600)
        await asyncio.sleep(5.0)
        assert it.sessions.has_waiting_turns(0)
        assert not it.engines[1].received
        holder.cancel(release=True)
        await task
        assert it.engines[0].received == ["one-0", "one-0"]

    run(2, scene)


def test_replica_that_rejected_a_request_takes_over_nothing() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        it.prefer(0)
        with pytest.raises(InvalidEngineResponse), it.pool.replicas[1].track_request():
            raise InvalidEngineResponse("overloaded")
        task = it.send("new")
        await asyncio.sleep(0.5)
        assert it.sessions.has_waiting_turns(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(2, scene)


def test_turn_that_is_cancelled_while_it_moves_leaves_no_trace() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(0)
        other = await it.occupy(1, "other")
        it.prefer(0)
        task = it.send("new")
        await asyncio.sleep(0.5)
        other.cancel(release=True)  # the turn moves, and its task has not resumed
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        it.turns["new"].cancel(release=True)
        assert [one.running_turns for _, one in it.sessions.schedulers()] == [1, 0]
        assert [one.session for _, one in it.sessions.sessions()] == ["holder#0"]

    run(2, scene)


def test_prompt_counts_as_cached_when_it_was_sent() -> None:
    async def scene(it: Scene) -> None:
        holders = [await it.occupy(at, f"holder-{at}") for at in (0, 1)]
        request = Agent("new").request(0, LARGE)
        task = it.send("new")
        await asyncio.sleep(0.5)
        assert not (await it.pool.index.find(request)).overlaps
        for holder in holders:
            holder.cancel(release=True)
        await task
        assert (await it.pool.index.find(request)).overlaps

    run(2, scene)


def test_failed_replica_admits_none_of_the_turns_that_waited_for_it() -> None:
    async def scene(it: Scene) -> None:
        holder = await it.occupy(0)
        agents = [Agent(f"waiting-{at}") for at in range(4)]
        turns = [agent.begin(it.pool) for agent in agents]
        entered = asyncio.gather(
            *(
                turn.enter(0, one.request(0, 300))
                for turn, one in zip(turns, agents, strict=True)
                if turn
            )
        )
        await asyncio.sleep(0.5)
        ((_, scheduler),) = it.sessions.schedulers()
        assert scheduler.waiting_turns == 4
        it.sessions.fail_replica(0)
        holder.cancel(release=True)
        assert await entered == [False] * 4
        assert (scheduler.counters.admitted, it.sessions.stats.waits.count) == (1, 1)
        assert (scheduler.running_turns, scheduler.waiting_turns) == (0, 0)
        assert scheduler.used_tokens == 0

    run(1, scene)


def test_turns_that_waited_for_the_only_replica_run_after_its_recovery() -> None:
    async def scene(it: Scene) -> None:
        first = it.send("first")
        await asyncio.sleep(0.1)
        tasks = [it.send(f"waiting-{at}") for at in range(3)]
        await asyncio.sleep(0.1)
        it.engines[0].fail()
        with pytest.raises(EngineUnavailable):
            await first
        it.turns["first"].cancel(release=True)
        await asyncio.sleep(0.1)
        it.engines[0].recover()
        await asyncio.gather(*tasks)
        assert len(it.engines[0].received) == 4
        waits = it.sessions.stats.waits
        # One after the other for a second each, after 0.1 s in the first queue and the recovery.
        assert waits.count == 4
        assert waits.sum >= 0.2 + 1.2 + 2.2

    run(1, scene)


def test_migrated_turn_without_room_is_no_expired_wait() -> None:
    async def scene(it: Scene) -> None:
        await it.occupy(1)
        turn = await it.occupy(0, "migrating")
        assert await turn.enter(1, Agent("migrating").request(0, LARGE))
        assert it.sessions.expired_waits == 0
        assert it.sessions.stats.waits.count == 2
        assert [one.running_turns for _, one in it.sessions.schedulers()] == [0, 2]

    run(2, scene)


def test_replicas_share_the_learned_tool_times() -> None:
    async def scene(it: Scene) -> None:
        for _ in range(4):
            turn = await it.occupy(0, "one", 100)
            turn.finish(TurnEnd(100, (("bash", "make"),)))
            await asyncio.sleep(5.0)
        it.sessions.add_replica(2, "engine", CAPACITY)
        seconds = {
            one.tool_times.quantile([("bash", "make")], 0.5, now())
            for _, one in it.sessions.schedulers()
        }
        assert len(seconds) == 1
        assert 5.0 <= (seconds.pop() or 0.0) < 8.0

    run(2, scene)


def test_time_on_another_replica_is_no_tool_time() -> None:
    async def scene(it: Scene) -> None:
        for replica in (0, 1, 1, 1, 1, 0):
            turn = await it.occupy(replica, "one", 100)
            turn.finish(TurnEnd(100, (("bash", "make"),)))
            held = [at for at, one in it.sessions.sessions() if one.status == "held"]
            assert set(held) <= {replica}
            await asyncio.sleep(2.0)
        learned = it.sessions.stats.actual
        assert learned.sum == 2.0 * learned.count
        ((_, first), _) = it.sessions.schedulers()
        seconds = first.tool_times.quantile([("bash", "make")], 1.0, now())
        assert 2.0 <= (seconds or 0.0) < 3.0  # of the returns to replica 1

    run(2, scene)


def test_turns_that_waited_for_the_only_replica_fail_if_it_does_not_recover() -> None:
    async def scene(it: Scene) -> None:
        holder = await it.occupy(0)
        task = it.send("waiting")
        await asyncio.sleep(0.1)
        it.engines[0].fail()
        it.pool.replicas[0].mark_down(EngineUnavailable("gone"))
        holder.cancel(release=True)
        with pytest.raises(EngineUnavailable):
            await task

    run(1, scene)


def test_conversations_without_a_place_are_deleted() -> None:
    async def scene(it: Scene) -> None:
        profiles = [TurnProfile("one", f"one#{at}", "", "") for at in range(MAX_BRANCHES + 2)]
        first = it.sessions.begin_turn(profiles[0])
        assert await first.enter(0, Agent("one").request(0, LARGE))
        for profile in profiles[1:]:
            it.sessions.begin_turn(profile)
        known = it.sessions._branches.get("one")
        assert known is not None
        assert len(known) <= MAX_BRANCHES
        first.finish(TurnEnd(LARGE))
        assert [*it.sessions.sessions()]
        it.sessions.release_session("one")
        assert not [*it.sessions.sessions()]

    run(1, scene)
