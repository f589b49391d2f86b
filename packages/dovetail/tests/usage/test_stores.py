"""Usage stores: the same rules for SQLite files, memory and Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis_cluster import RedisClusterServers
from redis_server import RedisServer

from dovetail.storage.faults import StoreError
from dovetail.usage.counts import HOUR_SECONDS, OTHER_SESSIONS, UsageCounts, UsageKey, floor_hour
from dovetail.usage.prices import Prices
from dovetail.usage.redis import RedisUsageStore
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.store import (
    STALE_SECONDS,
    FinishedRequest,
    OpenRequest,
    Spent,
    SpentKey,
    UsageBatch,
    UsageQuery,
    UsageRow,
    UsageStore,
)
from dovetail_model import Usage

NOW = 1_795_000_000.0  # 2026-11-18
HOUR = floor_hour(NOW)
KEY = UsageKey("team", "laptop", "model", "s1", "codex")
ONE = UsageCounts(requests=1, prompt_tokens=100, cached_tokens=60, output_tokens=7, cost_nanos=5)


class Bench:
    """Stores of one kind that share their data, with a clock that tests set."""

    def __init__(
        self, kind: str, folder: Path, server: RedisServer | RedisClusterServers | None, number: int
    ) -> None:
        self.kind = kind
        self.now = NOW
        self._path = folder / f"usage-{number}.sqlite"
        self._prefix = f"test{number}"
        self._server = server
        self._opened: list[UsageStore] = []

    def open(self, **options: Any) -> UsageStore:
        store: UsageStore
        if self._server is not None:
            store = RedisUsageStore(
                self._server.url, prefix=self._prefix, clock=self._clock, **options
            )
        else:
            path = None if self.kind == "memory" else self._path
            store = SqliteUsageStore(path, clock=self._clock, **options)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()

    def _clock(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    redis = RedisServer()
    redis.start()
    yield redis
    redis.remove()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers()
    servers.start()
    yield servers
    servers.remove()


Scene = Callable[[Bench], Awaitable[None]]
Play = Callable[[Scene], None]
_numbers = count()


@pytest.fixture(params=["memory", "sqlite", "redis", "cluster"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    kinds = {"redis": "server", "cluster": "cluster"}
    name = kinds.get(request.param)
    redis = None if name is None else request.getfixturevalue(name)

    def run(scene: Scene) -> None:
        async def main() -> None:
            async with _bench() as bench:
                await scene(bench)

        @asynccontextmanager
        async def _bench() -> AsyncIterator[Bench]:
            bench = Bench(request.param, tmp_path, redis, next(_numbers))
            try:
                yield bench
            finally:
                await bench.close()

        asyncio.run(main())

    return run


def finished(number: int, key: UsageKey = KEY, **more: Any) -> FinishedRequest:
    hour = more.pop("hour", HOUR)
    return FinishedRequest(OpenRequest(number, hour, key), more.pop("counts", ONE), **more)


async def total(store: UsageStore, **query: Any) -> UsageRow:
    [row] = await store.read(UsageQuery((), **query))
    return row


def test_rows_are_summed_by_each_dimension(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open()
        other = UsageKey("team", "ci", "model", "s2", "pi")
        late = finished(3, other, hour=HOUR + HOUR_SECONDS)
        await store.apply(UsageBatch("p", 1, (), (finished(1), finished(2), late)))
        assert await total(store) == UsageRow((), ONE + ONE + ONE)
        for by, groups in (
            (("tenant",), [("team",)]),
            (("key", "session"), [("ci", "s2"), ("laptop", "s1")]),
            (("harness", "model"), [("codex", "model"), ("pi", "model")]),
            (("hour",), [(HOUR,), (HOUR + HOUR_SECONDS,)]),
        ):
            assert [row.group for row in await store.read(UsageQuery(by))] == groups
        [first] = await store.read(UsageQuery(("key",), until=HOUR + HOUR_SECONDS))
        assert first == UsageRow(("laptop",), ONE + ONE)
        [last] = await store.read(UsageQuery(("key",), since=HOUR + HOUR_SECONDS))
        assert last.group == ("ci",)

    play(scene)


def test_batch_that_is_sent_again_counts_once(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open()
        batch = UsageBatch("p", 1, (OpenRequest(9, HOUR, KEY),), (finished(1),))
        await store.apply(batch)
        await store.apply(batch)
        await store.apply(UsageBatch("other process", 1, (), (finished(1),)))
        assert await total(store) == UsageRow((), ONE + ONE, running=1)

    play(scene)


def test_requests_of_a_crashed_process_are_interrupted(play: Play) -> None:
    """Both for readers and, after the maintenance of another process, in the stored counts."""

    async def scene(bench: Bench) -> None:
        store = bench.open()
        opened = tuple(OpenRequest(number, HOUR, KEY) for number in (1, 2))
        await store.apply(UsageBatch("crashed", 1, opened))
        await store.apply(UsageBatch("crashed", 2, (), (finished(1, announced=True),)))
        await store.apply(UsageBatch("alive", 1, (OpenRequest(1, HOUR, KEY),)))
        assert await total(store) == UsageRow((), ONE, running=2)
        bench.now += STALE_SECONDS + 1
        await store.maintain("alive")
        expected = UsageRow((), ONE + UsageCounts(interrupted=1), running=1)
        assert await total(store) == expected
        await store.maintain("alive")
        assert await total(store) == expected
        bench.now += STALE_SECONDS + 1  # and no process maintains the store
        assert await total(store) == UsageRow((), ONE + UsageCounts(interrupted=2))

    play(scene)


def test_request_of_a_stalled_process_is_counted_once(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open()
        await store.apply(UsageBatch("stalled", 1, (OpenRequest(1, HOUR, KEY),)))
        bench.now += STALE_SECONDS + 1
        await store.maintain(None)
        assert (await total(store)).counts.interrupted == 1
        await store.apply(UsageBatch("stalled", 2, (), (finished(1, announced=True),)))
        assert await total(store) == UsageRow((), ONE)

    play(scene)


def test_sessions_beyond_the_limit_are_one_row(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open(max_sessions=2)
        names = [f"s{number}" for number in range(5)]
        keys = [UsageKey("team", "k", "m", name, "pi") for name in names]
        opened = tuple(OpenRequest(at, HOUR, key) for at, key in enumerate(keys))
        await store.apply(UsageBatch("p", 1, opened))
        ends = tuple(finished(at, key, announced=True) for at, key in enumerate(keys))
        await store.apply(UsageBatch("p", 2, (), ends))
        unnamed = finished(9, UsageKey("team", "k", "m", "", "pi"))
        await store.apply(UsageBatch("p", 3, (), (unnamed, finished(10, keys[1]))))
        rows = await store.read(UsageQuery(("session",)))
        found = {row.group[0]: row.counts.requests for row in rows}
        assert found == {"": 1, OTHER_SESSIONS: 3, "s0": 1, "s1": 2}
        other_tenant = UsageKey("b", "k", "m", "s9", "pi")
        await store.apply(UsageBatch("p", 4, (), (finished(11, other_tenant),)))
        assert ("s9",) in [row.group for row in await store.read(UsageQuery(("session",)))]
        assert await total(store) == UsageRow((), sum([ONE] * 8, UsageCounts()))

    play(scene)


def test_old_usage_is_not_reported(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open(max_age=10 * HOUR_SECONDS)
        old = finished(1, hour=HOUR - 11 * HOUR_SECONDS)
        await store.apply(UsageBatch("p", 1, (), (old, finished(2))))
        await store.maintain(None)
        assert await total(store) == UsageRow((), ONE)
        if bench.kind in ("memory", "sqlite"):  # where hours expire by themselves
            assert await total(store, since=0) == UsageRow((), ONE)

    play(scene)


def test_spent_tokens_of_keys_and_tenants_by_day_and_month(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open()
        other = UsageKey("team", "ci", "model", "", "pi")
        yesterday = finished(3, hour=HOUR - 24 * HOUR_SECONDS)
        await store.apply(UsageBatch("p", 1, (), (finished(1), finished(2, other), yesterday)))
        keys = [
            SpentKey("2026-11-18", "team", "laptop"),
            SpentKey("2026-11-18", "team"),
            SpentKey("2026-11", "team", "laptop"),
            SpentKey("2026-11", "team"),
            SpentKey("2026-11", "team", "unknown"),
            SpentKey("2026-11", "other"),
        ]
        spent = await store.read_spent(keys)
        assert [one.tokens for one in spent] == [47, 94, 94, 141, 0, 0]
        assert [one.cost_nanos for one in spent[:4]] == [5, 10, 10, 15]
        assert spent[-1] == Spent()

    play(scene)


def test_processes_share_the_counts(tmp_path: Path, server: RedisServer) -> None:
    async def scene(bench: Bench) -> None:
        stores = [bench.open() for _ in range(4)]

        async def fill(process: str, store: UsageStore) -> None:
            for number in range(1, 26):
                await store.apply(UsageBatch(process, number, (), (finished(number),)))

        await asyncio.gather(*(fill(f"p{at}", store) for at, store in enumerate(stores)))
        for store in stores:
            assert (await total(store)).counts.requests == 100
        await bench.close()

    asyncio.run(scene(Bench("sqlite", tmp_path, None, next(_numbers))))
    asyncio.run(scene(Bench("redis", tmp_path, server, next(_numbers))))


def test_names_with_any_characters(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        store = bench.open()
        key = UsageKey("t", 'a"b', "org/model:7b", 'se:ss\n{"ion}', "other")
        batch = UsageBatch("p", 1, (OpenRequest(2, HOUR, key),), (finished(1, key),))
        await store.apply(batch)
        [row] = await store.read(UsageQuery(("key", "model", "session")))
        assert row == UsageRow((key.key, key.model, key.session), ONE, running=1)

    play(scene)


def test_redis_that_is_unavailable(tmp_path: Path) -> None:
    async def scene() -> None:
        store = RedisUsageStore(f"unix://{tmp_path}/none")
        with pytest.raises(StoreError, match="unavailable"):
            await store.apply(UsageBatch("p", 1, (), (finished(1),)))
        with pytest.raises(StoreError, match="unavailable"):
            await store.read(UsageQuery())
        assert store.faults.failures >= 2
        await store.close()

    asyncio.run(scene())


def test_cost() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=10)
    assert Prices(2.0, 0.5, 8.0).cost_nanos(usage) == 1_200_000_000 + 200_000_000 + 80_000
    assert Prices(2.0, None, 8.0).cost_nanos(usage) == 2_000_080_000
    assert Prices().cost_nanos(usage) == 0
