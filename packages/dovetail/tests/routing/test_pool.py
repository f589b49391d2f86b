"""Which replica a request goes to, and what becomes of one that fails."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from dovetail.engines.engine import (
    ConstraintSyntax,
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.token_stream import iter_deltas
from dovetail.routing import pool as pool_module
from dovetail.routing import replica as worker
from dovetail.routing.pool import ReplicaPool
from dovetail_model import EngineTimeout, EngineUnavailable, Overloaded


class Replica:
    """An engine that says its own number, and holds an answer as long as a test wants."""

    name = "stage"

    def __init__(
        self,
        number: int,
        constraints: tuple[ConstraintSyntax, ...] = ("gbnf",),
        window: int | None = None,
        local: bool = False,
    ) -> None:
        self.number = number
        self.capabilities = EngineCapabilities(constraints, True, True, window, local)
        self.ready = True
        self.fails: Exception | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.asked: list[EngineRequest] = []
        self.cancelled = 0
        self.starts = self.stops = 0

    async def start(self) -> None:
        self.starts += 1
        if self.capabilities.local:
            self.ready = True
        if not self.ready:
            raise EngineUnavailable("nobody there")

    async def stop(self) -> None:
        self.stops += 1

    async def health(self) -> EngineHealth:
        return EngineHealth(self.ready, "" if self.ready else "nobody there")

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.asked.append(request)
        if self.fails is not None:
            raise self.fails
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        sink.push(TokenDelta([self.number], finish="stop"))


def request(session: str | None = None, priority: int = 0) -> EngineRequest:
    return EngineRequest("r", array("I", [1, 2, 3]), 10, session=session, priority=priority)


async def said(pool: ReplicaPool, session: str | None = None) -> int:
    async with aclosing(iter_deltas(pool, request(session))) as deltas:
        told = [delta async for delta in deltas]
        return told[0].ids[0]


def scene(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await play()

    asyncio.run(main())


async def settle(until: Callable[[], bool]) -> None:
    while not until():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


def test_a_session_stays_and_new_ones_go_to_the_least_busy() -> None:
    async def play() -> None:
        replicas = [Replica(0), Replica(1)]
        pool = ReplicaPool(replicas)
        await pool.start()
        replicas[0].go_on.clear()
        held = asyncio.create_task(said(pool, "a"))
        await settle(lambda: bool(replicas[0].asked))
        assert [await said(pool, "b"), await said(pool, "c"), await said(pool)] == [1, 1, 1]
        replicas[0].go_on.set()
        assert await held == 0
        assert [await said(pool, name) for name in "abcab"] == [0, 1, 1, 0, 1]
        await pool.stop()

    scene(play)


@pytest.mark.parametrize("fault", [EngineUnavailable("dead"), EngineTimeout("silent")])
def test_a_replica_that_fails_is_passed_over_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(worker, "RECOVERY_DELAYS_SECONDS", (0.0,))

    async def play() -> None:
        first, second = Replica(0), Replica(1)
        pool = ReplicaPool([first, second])
        await pool.start()
        assert await said(pool, "a") == 0
        first.fails, first.ready = fault, False
        with pytest.raises(type(fault)):
            await said(pool, "a")
        assert pool.available_count == 1
        assert [await said(pool, "a"), await said(pool, "b")] == [1, 1]
        first.fails, first.ready = None, True
        await settle(lambda: pool.available_count == 2)
        assert await said(pool, "a") == 1  # its prefix is cached there now
        assert (await pool.health()).ready
        await pool.stop()

    scene(play)


def test_one_that_is_brought_back_beside_us_is_looked_at_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "RECOVERY_DELAYS_SECONDS", (3600.0,))
    monkeypatch.setattr(worker, "SUPERVISED_RECOVERY_DELAYS_SECONDS", (0.0,))

    async def play() -> None:
        hosted = Replica(0)
        hosted.capabilities = replace(hosted.capabilities, supervised_elsewhere=True)
        pool = ReplicaPool([hosted])
        await pool.start()
        hosted.fails, hosted.ready = EngineUnavailable("dead"), False
        with pytest.raises(EngineUnavailable):
            await said(pool)
        hosted.fails, hosted.ready = None, True
        await settle(lambda: pool.available_count == 1)
        await pool.stop()

    scene(play)


def test_a_busy_engine_is_not_a_dead_one() -> None:
    async def play() -> None:
        only = Replica(0)
        pool = ReplicaPool([only])
        only.fails = Overloaded("no room")
        with pytest.raises(Overloaded):
            await said(pool)
        assert pool.available_count == 1
        other = Replica(1)
        pool = ReplicaPool([only, other])
        with pytest.raises(Overloaded):
            await said(pool, "a")
        assert await said(pool, "a") == 1  # it has room
        await pool.stop()

    scene(play)


def test_a_process_of_ours_is_started_again() -> None:
    async def play() -> None:
        mine = Replica(0, local=True)
        pool = ReplicaPool([mine])
        await pool.start()
        mine.fails, mine.ready = EngineUnavailable("killed"), False
        with pytest.raises(EngineUnavailable):
            await said(pool)
        mine.fails = None
        await settle(lambda: pool.available_count == 1)
        assert (mine.stops, mine.starts) == (1, 2)
        assert await said(pool) == 0
        await pool.stop()

    scene(play)


def test_one_replica_is_enough_to_start_and_none_is_an_error() -> None:
    async def play() -> None:
        up, down = Replica(0), Replica(1)
        down.ready = False
        pool = ReplicaPool([down, up])
        await pool.start()
        assert await said(pool) == 0
        health = await pool.health()
        assert health.ready
        assert health.detail == "1 of 2 replicas are ready; 0: nobody there"
        await pool.stop()
        up.ready = False
        with pytest.raises(EngineUnavailable, match="nobody there"):
            await ReplicaPool([down, up]).start()

    scene(play)


def test_together_they_can_do_what_each_can() -> None:
    async def play() -> None:
        pool = ReplicaPool([Replica(0, ("lark", "gbnf"), 4000), Replica(1, ("gbnf",), 2000)])
        assert pool.capabilities.constraints == ("gbnf",)
        assert pool.capabilities.context_length == 2000

    scene(play)


def test_closing_an_answer_closes_the_engines() -> None:
    async def play() -> None:
        only = Replica(0)
        only.go_on.clear()
        pool = ReplicaPool([only])
        task = asyncio.create_task(said(pool))
        await settle(lambda: bool(only.asked))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert only.cancelled == 1
        assert pool.replicas[0].active_requests == 0

    scene(play)


def later(asked: EngineRequest) -> Callable[[], Awaitable[EngineRequest]]:
    async def make() -> EngineRequest:
        return asked

    return make


def test_what_is_read_ahead_gives_way_to_real_work() -> None:
    async def play() -> None:
        only = Replica(0)
        pool = ReplicaPool([only])
        pool.warm("a", later(request("a", -100)))
        await settle(lambda: pool.warmed_prompts == 1)
        only.go_on.clear()
        pool.warm("a", later(request("a", -100)))
        await settle(lambda: len(only.asked) == 2)
        real = asyncio.create_task(said(pool, "b"))
        await settle(lambda: len(only.asked) == 3)
        assert only.cancelled == 1
        only.go_on.set()
        assert await real == 0
        await pool.stop()

    scene(play)


def test_a_busy_replica_reads_nothing_ahead() -> None:
    async def play() -> None:
        only = Replica(0)
        only.go_on.clear()
        pool = ReplicaPool([only])
        real = asyncio.create_task(said(pool))
        await settle(lambda: bool(only.asked))
        pool.warm("a", later(request("a", -100)))
        await settle(lambda: not pool._warming)
        only.go_on.set()
        await real
        assert len(only.asked) == 1
        await pool.stop()

    scene(play)


def test_what_cannot_be_foretold_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> EngineRequest:
        raise ZeroDivisionError("no such template")

    async def play() -> None:
        pool = ReplicaPool([Replica(0)])
        with caplog.at_level("INFO"):
            pool.warm("a", broken)
            pool.warm("a", broken)  # the first has not even begun
            await settle(lambda: not pool._warming)
        assert "not_warmed" in caplog.text
        assert await said(pool) == 0
        await pool.stop()

    scene(play)


def test_what_was_stopped_is_not_started_again() -> None:
    """A stream that runs when the server ends breaks off: that is no death to be looked after."""

    async def play() -> None:
        mine = Replica(0, local=True)
        mine.go_on.clear()
        pool = ReplicaPool([mine])
        await pool.start()
        task = asyncio.create_task(said(pool))
        await settle(lambda: bool(mine.asked))
        await pool.stop()
        mine.fails = EngineUnavailable("the engine was stopped")
        with pytest.raises(EngineUnavailable):
            await said(pool)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (mine.starts, mine.stops) == (1, 1)

    scene(play)


def test_whatever_a_start_raises_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RECOVERY_DELAYS_SECONDS", (0.0,))

    class Odd(Replica):
        async def start(self) -> None:
            await super().start()
            if self.starts < 3:
                self.ready = False
                raise OSError("too many open files")

    async def play() -> None:
        odd, sound = Odd(0, local=True), Replica(1)
        pool = ReplicaPool([odd, sound])
        await pool.start()
        assert pool.available_count == 1
        await settle(lambda: pool.available_count == 2)
        assert odd.starts == 3
        await pool.stop()

    scene(play)


def test_a_replica_that_hangs_lets_go_of_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works, says nothing and does not answer: what it had to do goes on elsewhere."""
    monkeypatch.setattr(worker, "STALL_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(pool_module, "STALL_CHECK_INTERVAL_SECONDS", 0.0)

    class Hanging(Replica):
        async def stop(self) -> None:
            await super().stop()
            self.fails = EngineUnavailable("the line was cut")
            self.go_on.set()

        async def generate(self, request: EngineRequest, listener: TokenSink) -> None:
            self.asked.append(request)
            await self.go_on.wait()
            raise self.fails or AssertionError("it did not hang")

    async def play() -> None:
        hanging, sound = Hanging(0), Replica(1)
        pool = ReplicaPool([hanging, sound])
        await pool.start()
        hanging.go_on.clear()
        task = asyncio.create_task(said(pool, "a"))
        await settle(lambda: bool(hanging.asked))
        hanging.ready = False
        with pytest.raises(EngineUnavailable, match="the line was cut"):
            await task
        assert pool.available_count == 1
        assert await said(pool, "a") == 1
        await pool.stop()

    scene(play)


def test_a_server_that_is_well_but_has_another_model_stays_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "RECOVERY_DELAYS_SECONDS", (0.0,))

    class Changed(Replica):
        async def start(self) -> None:
            await super().start()
            if self.starts > 1:
                raise EngineUnavailable("it serves something else now")

    async def play() -> None:
        changed = Changed(0)
        pool = ReplicaPool([changed, Replica(1)])
        await pool.start()
        changed.fails = EngineUnavailable("no such model")
        with pytest.raises(EngineUnavailable):
            await said(pool, "a")
        await settle(lambda: changed.starts > 3)
        assert pool.available_count == 1
        await pool.stop()

    scene(play)
