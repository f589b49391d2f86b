"""Replica selection, failures and recovery, and warming."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import msgspec
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
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.replica import HealthCheckOptions
from dovetail_model import EngineTimeout, EngineUnavailable, Overloaded

IMMEDIATE_RECOVERY = HealthCheckOptions(recovery_delays_seconds=(0.0,))


class FakeEngine:
    """An engine that generates its own number, and blocks while `go_on` is clear."""

    name = "fake"

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
        self.requests: list[EngineRequest] = []
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
        self.requests.append(request)
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


async def generate(pool: ReplicaPool, session: str | None = None) -> int:
    async with aclosing(iter_deltas(pool, request(session))) as deltas:
        received = [delta async for delta in deltas]
        return received[0].ids[0]


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await check()

    asyncio.run(main())


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


def test_sessions_stay_on_their_replica_and_new_ones_balance_load() -> None:
    async def check() -> None:
        replicas = [FakeEngine(0), FakeEngine(1)]
        pool = ReplicaPool(replicas)
        await pool.start()
        replicas[0].go_on.clear()
        held = asyncio.create_task(generate(pool, "a"))
        await wait_until(lambda: bool(replicas[0].requests))
        assert [await generate(pool, "b"), await generate(pool, "c"), await generate(pool)] == [
            1,
            1,
            1,
        ]
        replicas[0].go_on.set()
        assert await held == 0
        assert [await generate(pool, name) for name in "abcab"] == [0, 1, 1, 0, 1]
        await pool.stop()

    run_async(check)


def test_last_request_of_a_session_releases_its_replica() -> None:
    async def check() -> None:
        replicas = [FakeEngine(0), FakeEngine(1)]
        pool = ReplicaPool(replicas)
        await pool.start()
        # Two requests of "b", so that its replica has clearly more load once "a" has ended.
        assert [await generate(pool, name) for name in "abb"] == [0, 1, 1]
        last = msgspec.structs.replace(request("a"), ends_session=True)
        async with aclosing(iter_deltas(pool, last)) as deltas:
            assert [delta.ids async for delta in deltas] == [[0]]
        replicas[0].go_on.clear()
        held = asyncio.create_task(generate(pool, "c"))
        await wait_until(lambda: len(replicas[0].requests) == 3)
        assert await generate(pool, "a") == 1  # the least loaded one, like a new session
        replicas[0].go_on.set()
        assert await held == 0
        await pool.stop()

    run_async(check)


@pytest.mark.parametrize("fault", [EngineUnavailable("dead"), EngineTimeout("silent")])
def test_failed_replica_is_skipped_until_it_recovers(fault: Exception) -> None:
    async def check() -> None:
        first, second = FakeEngine(0), FakeEngine(1)
        pool = ReplicaPool([first, second], health_checks=IMMEDIATE_RECOVERY)
        await pool.start()
        assert await generate(pool, "a") == 0
        first.fails, first.ready = fault, False
        with pytest.raises(type(fault)):
            await generate(pool, "a")
        assert pool.available_count == 1
        assert [await generate(pool, "a"), await generate(pool, "b")] == [1, 1]
        first.fails, first.ready = None, True
        await wait_until(lambda: pool.available_count == 2)
        assert await generate(pool, "a") == 1  # its prefix is cached there now
        assert (await pool.health()).ready
        await pool.stop()

    run_async(check)


def test_engine_supervised_elsewhere_is_polled_often() -> None:
    checks = HealthCheckOptions(
        recovery_delays_seconds=(3600.0,), supervised_recovery_delays_seconds=(0.0,)
    )

    async def check() -> None:
        hosted = FakeEngine(0)
        hosted.capabilities = replace(hosted.capabilities, supervised_elsewhere=True)
        pool = ReplicaPool([hosted], health_checks=checks)
        await pool.start()
        hosted.fails, hosted.ready = EngineUnavailable("dead"), False
        with pytest.raises(EngineUnavailable):
            await generate(pool)
        hosted.fails, hosted.ready = None, True
        await wait_until(lambda: pool.available_count == 1)
        await pool.stop()

    run_async(check)


def test_overloaded_replica_stays_available() -> None:
    async def check() -> None:
        only = FakeEngine(0)
        pool = ReplicaPool([only])
        only.fails = Overloaded("no room")
        with pytest.raises(Overloaded):
            await generate(pool)
        assert pool.available_count == 1
        other = FakeEngine(1)
        pool = ReplicaPool([only, other])
        with pytest.raises(Overloaded):
            await generate(pool, "a")
        assert await generate(pool, "a") == 1  # it is no longer overloaded
        await pool.stop()

    run_async(check)


def test_local_engine_is_restarted() -> None:
    async def check() -> None:
        mine = FakeEngine(0, local=True)
        pool = ReplicaPool([mine])
        await pool.start()
        mine.fails, mine.ready = EngineUnavailable("killed"), False
        with pytest.raises(EngineUnavailable):
            await generate(pool)
        mine.fails = None
        await wait_until(lambda: pool.available_count == 1)
        assert (mine.stops, mine.starts) == (1, 2)
        assert await generate(pool) == 0
        await pool.stop()

    run_async(check)


def test_start_requires_one_replica() -> None:
    async def check() -> None:
        up, down = FakeEngine(0), FakeEngine(1)
        down.ready = False
        pool = ReplicaPool([down, up])
        await pool.start()
        assert await generate(pool) == 0
        health = await pool.health()
        assert health.ready
        assert health.detail == "1 of 2 replicas are ready; replica 0: nobody there"
        await pool.stop()
        up.ready = False
        with pytest.raises(EngineUnavailable, match="nobody there"):
            await ReplicaPool([down, up]).start()

    run_async(check)


def test_capabilities_are_those_of_every_replica() -> None:
    async def check() -> None:
        pool = ReplicaPool([FakeEngine(0, ("lark", "gbnf"), 4000), FakeEngine(1, ("gbnf",), 2000)])
        assert pool.capabilities.constraints == ("gbnf",)
        assert pool.capabilities.context_length == 2000

    run_async(check)


def test_cancelling_a_stream_cancels_the_engine() -> None:
    async def check() -> None:
        only = FakeEngine(0)
        only.go_on.clear()
        pool = ReplicaPool([only])
        task = asyncio.create_task(generate(pool))
        await wait_until(lambda: bool(only.requests))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert only.cancelled == 1
        assert pool.replicas[0].active_requests == 0

    run_async(check)


def factory_for(request: EngineRequest) -> Callable[[], Awaitable[EngineRequest]]:
    async def make() -> EngineRequest:
        return request

    return make


def test_requests_cancel_warming() -> None:
    async def check() -> None:
        only = FakeEngine(0)
        pool = ReplicaPool([only])
        pool.warm("a", factory_for(request("a", -100)))
        await wait_until(lambda: pool.warmed_prompts == 1)
        only.go_on.clear()
        pool.warm("a", factory_for(request("a", -100)))
        await wait_until(lambda: len(only.requests) == 2)
        real = asyncio.create_task(generate(pool, "b"))
        await wait_until(lambda: len(only.requests) == 3)
        assert only.cancelled == 1
        only.go_on.set()
        assert await real == 0
        await pool.stop()

    run_async(check)


def test_busy_replica_is_not_warmed() -> None:
    async def check() -> None:
        only = FakeEngine(0)
        only.go_on.clear()
        pool = ReplicaPool([only])
        real = asyncio.create_task(generate(pool))
        await wait_until(lambda: bool(only.requests))
        pool.warm("a", factory_for(request("a", -100)))
        await wait_until(lambda: pool._warmer.is_idle)
        only.go_on.set()
        await real
        assert len(only.requests) == 1
        await pool.stop()

    run_async(check)


def test_failed_warming_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> EngineRequest:
        raise ZeroDivisionError("no such template")

    async def check() -> None:
        pool = ReplicaPool([FakeEngine(0)])
        with caplog.at_level("INFO"):
            pool.warm("a", broken)
            pool.warm("a", broken)  # the first has not been started yet
            await wait_until(lambda: pool._warmer.is_idle)
        assert "warming_failed" in caplog.text
        assert await generate(pool) == 0
        await pool.stop()

    run_async(check)


def test_stopped_replica_is_not_restarted() -> None:
    """A stream that fails because the pool was stopped does not start a recovery."""

    async def check() -> None:
        mine = FakeEngine(0, local=True)
        mine.go_on.clear()
        pool = ReplicaPool([mine])
        await pool.start()
        task = asyncio.create_task(generate(pool))
        await wait_until(lambda: bool(mine.requests))
        await pool.stop()
        mine.fails = EngineUnavailable("the engine was stopped")
        with pytest.raises(EngineUnavailable):
            await generate(pool)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (mine.starts, mine.stops) == (1, 1)

    run_async(check)


def test_recovery_retries_after_any_start_error() -> None:
    class Odd(FakeEngine):
        async def start(self) -> None:
            await super().start()
            if self.starts < 3:
                self.ready = False
                raise OSError("too many open files")

    async def check() -> None:
        odd, sound = Odd(0, local=True), FakeEngine(1)
        pool = ReplicaPool([odd, sound], health_checks=IMMEDIATE_RECOVERY)
        await pool.start()
        assert pool.available_count == 1
        await wait_until(lambda: pool.available_count == 2)
        assert odd.starts == 3
        await pool.stop()

    run_async(check)


def test_stalled_replica_fails_its_streams() -> None:
    """The replica has requests, emits no tokens and fails its health check: its streams migrate."""
    checks = HealthCheckOptions(stall_timeout_seconds=0.0, stall_check_interval_seconds=0.0)

    class Hanging(FakeEngine):
        async def stop(self) -> None:
            await super().stop()
            self.fails = EngineUnavailable("the line was cut")
            self.go_on.set()

        async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
            self.requests.append(request)
            await self.go_on.wait()
            raise self.fails or AssertionError("it did not hang")

    async def check() -> None:
        hanging, sound = Hanging(0), FakeEngine(1)
        pool = ReplicaPool([hanging, sound], health_checks=checks)
        await pool.start()
        hanging.go_on.clear()
        task = asyncio.create_task(generate(pool, "a"))
        await wait_until(lambda: bool(hanging.requests))
        hanging.ready = False
        with pytest.raises(EngineUnavailable, match="the line was cut"):
            await task
        assert pool.available_count == 1
        assert await generate(pool, "a") == 1
        await pool.stop()

    run_async(check)


def test_healthy_server_with_another_model_stays_down() -> None:
    class Changed(FakeEngine):
        async def start(self) -> None:
            await super().start()
            if self.starts > 1:
                raise EngineUnavailable("it serves something else now")

    async def check() -> None:
        changed = Changed(0)
        pool = ReplicaPool([changed, FakeEngine(1)], health_checks=IMMEDIATE_RECOVERY)
        await pool.start()
        changed.fails = EngineUnavailable("no such model")
        with pytest.raises(EngineUnavailable):
            await generate(pool, "a")
        await wait_until(lambda: changed.starts > 3)
        assert pool.available_count == 1
        await pool.stop()

    run_async(check)
