"""Response backends: the same rules for memory, SQLite and Redis."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis_cluster import RedisClusterServers
from redis_server import RedisServer

from dovetail.responses import redis as redis_backend
from dovetail.responses import store as response_store
from dovetail.responses.backend import (
    ResponseBackend,
    StoredResponse,
    decode_response,
    encode_response,
)
from dovetail.responses.connection_cache import ConnectionCache
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.redis import RedisResponseBackend
from dovetail.responses.sqlite import SqliteResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.storage.faults import StoreError
from dovetail.storage.redis_client import connect
from dovetail_model import InvalidRequest, PreviousResponseNotFound, RequestTooLarge

AGE = 1000.0
LIMIT = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Bench:
    store: ResponseBackend
    advance: Callable[[float], Awaitable[None]]


Scene = Callable[[Bench], Awaitable[None]]


class Scenario:
    """Runs a coroutine function with a new store."""

    def __init__(self, kind: str, folder: Path, url: str | None) -> None:
        self.kind = kind
        self._folder = folder
        self._url = url
        self._number = count()

    def run(self, scene: Scene, *, max_bytes: int = 1 << 30) -> None:
        async def main() -> None:
            async with self._open(max_bytes) as bench:
                await scene(bench)
                await bench.store.close()

        asyncio.run(main())

    @asynccontextmanager
    async def _open(self, max_bytes: int) -> AsyncIterator[Bench]:
        clock = Clock()
        bounds: Any = {"max_bytes": max_bytes, "max_age": AGE, "clock": clock}
        if self.kind == "memory":
            yield Bench(MemoryResponseBackend(**bounds), clock.advance)
        elif self.kind == "sqlite":
            path = self._folder / f"{next(self._number)}.sqlite"
            yield Bench(SqliteResponseBackend(path, **bounds), clock.advance)
        else:
            assert self._url is not None
            async with connect(self._url, 30.0) as client:
                await client.flushall()
                store = RedisResponseBackend(self._url, max_age=AGE, timeout=30.0)

                async def advance(seconds: float) -> None:
                    """Reduce the TTL of every key: the clock of the server cannot be set."""
                    async for key in client.scan_iter():
                        left = await client.pttl(key) - round(seconds * 1000)
                        await client.pexpire(key, max(0, left))

                yield Bench(store, advance)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    running = RedisServer()
    running.start()
    yield running
    running.remove()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisClusterServers]:
    running = RedisClusterServers()
    running.start()
    yield running
    running.remove()


@pytest.fixture(params=["memory", "sqlite", "redis", "cluster"])
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Scenario:
    fixture = {"redis": "server", "cluster": "cluster"}.get(request.param)
    url = request.getfixturevalue(fixture).url if fixture is not None else None
    return Scenario(request.param, tmp_path, url)


def response(id: str, tenant: str = "t", **more: Any) -> StoredResponse:
    fields: dict[str, Any] = {
        "created_at": 5.0,
        "status": "completed",
        "head": b'{"id":"%b"}' % id.encode(),
        "input": b'{"in":"%b"}' % id.encode(),
        "output": b'{"out":"%b"}' % id.encode(),
    }
    return StoredResponse(tenant, id, **(fields | more))


def test_stored_responses_are_visible_to_their_tenant_only(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        one = response("r1", previous="r0", background=True)
        await bench.store.put(one)
        assert await bench.store.get("t", "r1") == one
        assert await bench.store.get("u", "r1") is None
        assert await bench.store.get("t", "r2") is None
        assert await bench.store.get_existing_ids("t", ["r1", "r2"]) == {"r1"}
        assert await bench.store.get_existing_ids("u", ["r1"]) == set()
        assert not await bench.store.delete("u", "r1")
        await bench.store.put(response("r1", "u", output=b"other"))
        found = await bench.store.get("t", "r1")
        assert found == one
        assert await bench.store.delete("t", "r1")
        assert not await bench.store.delete("t", "r1")
        assert await bench.store.get("t", "r1") is None
        assert await bench.store.get("u", "r1") is not None

    scenario.run(scene)


def test_a_newer_version_replaces_the_older(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        await bench.store.put(response("r1", status="queued", output=b""))
        await bench.store.put(response("r1", output=b"x" * 5000))
        found = await bench.store.get("t", "r1")
        assert found is not None
        assert (found.status, len(found.output)) == ("completed", 5000)
        stats = await bench.store.stats()
        assert stats.responses == 1
        await bench.store.delete("t", "r1")
        assert (await bench.store.stats()).bytes == 0

    scenario.run(scene)


def test_swap_replaces_only_an_unchanged_response(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        old, new = response("r1", previous="a"), response("r1", previous="b")
        assert not await bench.store.swap(old, new)
        assert await bench.store.get("t", "r1") is None
        await bench.store.put(old)
        results = await asyncio.gather(*(bench.store.swap(old, new) for _ in range(5)))
        assert results.count(True) == 1
        assert await bench.store.get("t", "r1") == new
        assert not await bench.store.swap(old, response("r1", previous="c"))
        assert await bench.store.get("t", "r1") == new
        assert await bench.store.get("u", "r1") is None

    scenario.run(scene)


def test_processes_with_one_file_swap_once(tmp_path: Path) -> None:
    async def scene() -> None:
        stores = [SqliteResponseBackend(tmp_path / "responses.sqlite") for _ in range(3)]
        old = response("r1", previous="a")
        await stores[0].put(old)
        changes = [response("r1", previous=str(at)) for at in range(len(stores))]
        swaps = (store.swap(old, new) for store, new in zip(stores, changes, strict=True))
        assert (await asyncio.gather(*swaps)).count(True) == 1
        for store in stores:
            await store.close()

    asyncio.run(scene())


def test_the_age_counts_from_the_last_use(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        for id in ("r1", "r2"):
            await bench.store.put(response(id))
        await bench.advance(AGE * 0.75)
        await bench.store.touch("t", ["r1", "unknown"])
        await bench.advance(AGE * 0.75)
        assert await bench.store.get("t", "r1") is not None
        assert await bench.store.get("t", "r2") is None
        assert await bench.store.get_existing_ids("t", ["r1", "r2"]) == {"r1"}
        assert not await bench.store.delete("t", "r2")

    scenario.run(scene)


def test_size_is_limited_and_the_oldest_use_is_evicted(scenario: Scenario) -> None:
    if scenario.kind in ("redis", "cluster"):
        pytest.skip("the server bounds its memory")
    noise = os.urandom(20_000)

    async def scene(bench: Bench) -> None:
        for number in range(50):
            await bench.store.put(response(f"r{number}", head=noise))
            await bench.store.touch("t", ["r0"])
            await bench.advance(1.0)
            assert (await bench.store.stats()).bytes <= 200_000
        assert await bench.store.get("t", "r0") is not None
        assert await bench.store.get("t", "r1") is None
        assert await bench.store.get("t", "r49") is not None
        await bench.store.put(response("huge", head=os.urandom(300_000)))
        assert await bench.store.get("t", "huge") is None
        assert await bench.store.get("t", "r49") is not None

    scenario.run(scene, max_bytes=200_000)


def test_a_damaged_body_is_not_decoded() -> None:
    whole = encode_response(response("r1"))
    assert decode_response(whole) == response("r1")
    for broken in (b"", whole[:-3], whole[3:], b"\0" * 40, os.urandom(100)):
        assert decode_response(broken) is None


def test_the_file_survives_a_restart_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "responses.sqlite"

    async def write() -> None:
        store = SqliteResponseBackend(path)
        await store.put(response("r1"))
        await store.close()
        with pytest.raises(StoreError, match="is closed"):
            await store.get("t", "r1")

    async def read() -> None:
        store = SqliteResponseBackend(path)
        assert await store.get("t", "r1") == response("r1")
        await store.close()

    asyncio.run(write())
    asyncio.run(read())
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    from dovetail.ledger.sqlite_store import SqliteLedgerStore

    asyncio.run(SqliteLedgerStore(tmp_path / "turns.sqlite").close())
    with pytest.raises(StoreError, match="not a response store"):
        SqliteResponseBackend(tmp_path / "turns.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other, other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(StoreError, match="not a response store"):
        SqliteResponseBackend(tmp_path / "other.sqlite")


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = (ResponseStore(SqliteResponseBackend(tmp_path / "r.sqlite")) for _ in range(2))
        first = response("r1")
        one.put(first)
        await one.wait_stored(first)
        assert await two.get("t", "r1") == first
        one.put(second := response("r2", previous="r1"))
        await one.wait_stored(second)
        assert [r.id for r in await two.get_chain("t", "r2", LIMIT)] == ["r1", "r2"]
        assert len(await one.get_chain("t", "r2", LIMIT)) == 2
        assert await two.delete("t", "r1")
        assert [r.id for r in await one.get_available_chain("t", "r2", LIMIT)] == ["r2"]
        with pytest.raises(PreviousResponseNotFound, match="'r1'"):
            await one.get_chain("t", "r2", LIMIT)
        assert await one.get("t", "r1") is None
        assert [r.id for r in await one.get_available_chain("t", "r2", LIMIT)] == ["r2"]
        await one.close()
        await two.close()

    asyncio.run(scene())


def test_a_response_is_found_before_it_is_written(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        responses = ResponseStore(bench.store)
        for number in range(100):
            previous = f"r{number - 1}" if number else None
            responses.put(response(f"r{number}", previous=previous))
            chain = await responses.get_chain("t", f"r{number}", LIMIT)
            assert [one.id for one in chain] == [f"r{at}" for at in range(number + 1)]
        with pytest.raises(PreviousResponseNotFound):
            await responses.get_chain("u", "r5", LIMIT)
        await responses.drain()
        responses.put(response("r3", status="failed"))
        found = await responses.get("t", "r3")
        assert found is not None
        assert found.status == "failed"
        assert await responses.delete("t", "r99")
        assert await responses.get("t", "r99") is None

    scenario.run(scene)


def test_a_short_outage_of_redis_loses_no_response() -> None:
    server = RedisServer()
    server.start()

    async def main() -> None:
        store = RedisResponseBackend(server.url, timeout=0.1)
        assert server.process is not None
        await store.put(response("r1"))
        server.process.send_signal(signal.SIGSTOP)
        writing = asyncio.create_task(store.put(response("r2")))
        while not store.faults.failures:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGCONT)
        await writing
        assert store.faults.lost == 0
        while await store.get_existing_ids("t", ["r1", "r2"]) != {"r1", "r2"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await store.close()

    try:
        asyncio.run(main())
    finally:
        server.remove()


def test_outputs_are_returned_up_to_the_first_missing_response(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        responses, local = ResponseStore(bench.store), ConnectionCache()
        for id in ("r1", "r2", "r3"):
            responses.put(response(id))
            await responses.wait_stored(response(id))
        local.put((), response("mine"))
        found = await responses.get_outputs("t", ["r2", "mine", "r1", "r2"], LIMIT, local)
        assert found == [response(id).output for id in ("r2", "r1", "mine")]
        assert await responses.get_outputs("t", ["r1", "none", "r2"], LIMIT) == [
            response("r1").output
        ]
        assert await responses.get_outputs("u", ["r1"], LIMIT) == []
        with pytest.raises(RequestTooLarge):
            await responses.get_outputs("t", ["r1", "r2"], 2 * len(response("r1").output) - 1)
        await bench.store.delete("t", "r1")  # as another process would
        assert await responses.get_outputs("t", ["r1", "r3"], LIMIT) == [response("r3").output]

    scenario.run(scene)


def test_a_chain_in_use_does_not_expire(scenario: Scenario) -> None:
    async def scene(bench: Bench) -> None:
        now = [0.0]
        responses = ResponseStore(bench.store, clock=lambda: now[0])
        age = response_store.TOUCH_INTERVAL_SECONDS
        responses.put(response("r0"))
        await responses.wait_stored(response("r0"))
        for number in range(1, 8):
            await bench.advance(AGE * 0.3)
            now[0] += age * 1.1
            chain = await responses.get_chain("t", f"r{number - 1}", LIMIT)
            assert chain[0].id == "r0"
            new = response(f"r{number}", previous=f"r{number - 1}")
            responses.put(new)
            await responses.wait_stored(new)

    scenario.run(scene)


def test_running_and_oversized_responses_cannot_be_continued() -> None:
    async def scene() -> None:
        responses = ResponseStore(MemoryResponseBackend())
        responses.put(response("r1", status="in_progress"))
        with pytest.raises(InvalidRequest, match="not finished"):
            await responses.get_chain("t", "r1", LIMIT)
        responses.put(response("r2", output=b"x" * 1000))
        with pytest.raises(RequestTooLarge):
            await responses.get_chain("t", "r2", 500)
        await responses.close()

    asyncio.run(scene())


def test_a_cyclic_chain_is_rejected_as_too_large() -> None:
    """Responses without items also count: only a damaged store can contain a cycle."""

    async def scene() -> None:
        responses = ResponseStore(MemoryResponseBackend())
        for id, before in (("r1", "r2"), ("r2", "r1")):
            responses.put(response(id, previous=before, input=b"", output=b""))
        with pytest.raises(RequestTooLarge):
            await responses.get_chain("t", "r1", LIMIT)
        with pytest.raises(RequestTooLarge):
            await responses.get_available_chain("t", "r1", LIMIT)
        await responses.close()

    asyncio.run(scene())


def test_chains_hold_only_items() -> None:
    """A head contains the tools and instructions of its request, and a chain has many heads."""

    async def scene() -> None:
        responses = ResponseStore(MemoryResponseBackend())
        responses.put(response("r1", head=b"x" * 1000))
        responses.put(response("r2", head=b"x" * 1000, previous="r1"))
        chain = await responses.get_chain("t", "r2", LIMIT)
        assert [(one.id, one.head, one.items) for one in chain] == [
            (id, b"", response(id).items) for id in ("r1", "r2")
        ]
        found = await responses.get("t", "r2")
        assert found is not None
        assert len(found.head) == 1000
        await responses.close()

    asyncio.run(scene())


class Failing(MemoryResponseBackend):
    """A store that fails while `fails` is set."""

    fails = True

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        self._look()
        return await super().get(tenant, id)

    async def put(self, response: StoredResponse) -> None:
        self._look()
        await super().put(response)

    async def get_existing_ids(self, tenant: str, ids: Any) -> set[str] | None:
        self._look()
        return await super().get_existing_ids(tenant, ids)

    async def delete(self, tenant: str, id: str) -> bool:
        self._look()
        return await super().delete(tenant, id)

    def _look(self) -> None:
        if self.fails:
            raise StoreError("/its/own/place is away")


def test_failing_store_fails_no_response(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        store = Failing()
        responses = ResponseStore(store, has_peers=True)
        one = response("r1")
        responses.put(one)
        await responses.wait_stored(one)
        assert [r.id for r in await responses.get_chain("t", "r1", LIMIT)] == ["r1"]
        assert await responses.get("t", "r1") == one
        assert await responses.get("t", "other") is None
        with pytest.raises(StoreError, match="retry later") as error:
            await responses.delete("t", "r1")
        assert "place" not in error.value.message  # clients receive this message
        store.fails = False
        responses.put(two := response("r2", previous="r1"))
        await responses.wait_stored(two)
        assert await store.get("t", "r2") == two
        await responses.close()

    asyncio.run(scene())
    assert [record.getMessage() for record in caplog.records] == ["store_write_lost"]


def test_responses_can_be_stored_after_a_redis_outage(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_backend, "_WRITE_SECONDS", 0.0)

    async def scene() -> None:
        responses = ResponseStore(
            store := RedisResponseBackend(server.url, clock=lambda: clock[0]), has_peers=True
        )
        one = response("r1")
        responses.put(one)
        await responses.wait_stored(one)
        server.stop()
        responses.put(two := response("r2", previous="r1"))
        await responses.wait_stored(two)
        assert store.faults.lost == 1
        assert [r.id for r in await responses.get_chain("t", "r2", LIMIT)] == ["r1", "r2"]
        with pytest.raises(StoreError):
            await responses.delete("t", "r1")
        server.start()  # empty
        clock[0] += 10.0
        assert await responses.get("t", "r1") is None
        with pytest.raises(PreviousResponseNotFound):
            await responses.get_chain("t", "r2", LIMIT)
        responses.put(three := response("r3"))
        await responses.wait_stored(three)
        assert [r.id for r in await responses.get_chain("t", "r3", LIMIT)] == ["r3"]
        await responses.close()

    clock = [0.0]
    asyncio.run(scene())


def test_a_connection_caches_the_last_responses_with_their_chains() -> None:
    async def scene() -> None:
        responses, local = ResponseStore(MemoryResponseBackend()), ConnectionCache(max_responses=3)
        before: tuple[StoredResponse, ...] = ()
        for number in range(50):
            one = response(f"r{number}")
            local.put(before, one)
            before = (*before, one)
        chain = await responses.get_chain("t", "r49", LIMIT, local)
        assert [one.id for one in chain] == [f"r{number}" for number in range(50)]
        assert local.get_chain("r47") is not None
        assert local.get_chain("r46") is None
        with pytest.raises(PreviousResponseNotFound):
            await responses.get_chain("t", "r46", LIMIT, local)
        with pytest.raises(PreviousResponseNotFound):
            await responses.get_chain("t", "r49", LIMIT)
        await responses.close()

    asyncio.run(scene())


def test_a_busy_conversation_does_not_evict_an_idle_one() -> None:
    local = ConnectionCache(max_responses=3)
    local.put((), response("resting"))
    before: tuple[StoredResponse, ...] = ()
    for number in range(10):
        local.put(before, one := response(f"r{number}"))
        before = (*before, one)
    assert local.get_chain("resting") is not None
    assert [one.id for one in local.get_chain("r9") or ()] == [one.id for one in before]
    assert local.get_chain("r7") is None
