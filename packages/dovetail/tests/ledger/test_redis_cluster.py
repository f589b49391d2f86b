"""The ledger on a real Redis Cluster of three primaries: spread keys, and lost data."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ledger_entries import turn
from redis_cluster import RedisClusterServers

from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.store import OpenTurn, TurnMark
from dovetail.storage.faults import StoreError

TURNS = 60


@pytest.fixture
def cluster() -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers()
    servers.start()
    yield servers
    servers.remove()


def _run(
    cluster: RedisClusterServers,
    folder: Path,
    body: Callable[[RedisLedgerStore, RedisLedgerStore], Awaitable[None]],
) -> None:
    """Run `body` with the stores of two frontends."""

    async def main() -> None:
        stores = [
            RedisLedgerStore(cluster.url, folder=folder / name, timeout=10.0) for name in "ab"
        ]
        try:
            await body(stores[0], stores[1])
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


async def _is_exhaustive(store: RedisLedgerStore) -> bool:
    return (await store.find_by_chain("t", b"chain", b"before")).exhaustive


async def _wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_turns_of_one_tenant_and_session_are_spread_over_all_nodes(
    cluster: RedisClusterServers, tmp_path: Path
) -> None:
    async def body(one: RedisLedgerStore, other: RedisLedgerStore) -> None:
        for number in range(TURNS):
            name = f"{number}".encode()
            await one.put(turn(f"e{number}", chain=name, calls=(f"c{number}",), session="s"))
        assert len(await other.find_by_session("t", "s")) == TURNS
        assert [known.session for known in await other.list_sessions("t")] == ["s"]
        assert (await other.stats()).entries == TURNS
        for number in range(TURNS):
            found = await other.find_by_chain("t", f"{number}".encode(), b"before")
            assert found.ids == (f"e{number}",)
        assert sum(cluster.count_keys()) > 2 * TURNS
        assert min(cluster.count_keys()) > TURNS // 4

    _run(cluster, tmp_path, body)


def test_a_turn_is_open_until_it_is_stored(cluster: RedisClusterServers, tmp_path: Path) -> None:
    async def body(one: RedisLedgerStore, other: RedisLedgerStore) -> None:
        await other.start()
        await one.open_turn(OpenTurn("t", "e1", b"before", "s"))
        found = await other.find_by_chain("t", b"chain", b"before")
        assert found == ((), (TurnMark("e1", "s"),), True)
        await one.put(turn("e1"))
        assert await other.find_by_chain("t", b"chain", b"before") == (("e1",), (), True)

    _run(cluster, tmp_path, body)


@pytest.mark.parametrize("number", range(3))
def test_a_node_that_lost_its_data_leaves_a_gap(
    cluster: RedisClusterServers, tmp_path: Path, number: int
) -> None:
    """Whichever node it is: the one of the leases, the one of the lookup, or another one."""

    async def body(one: RedisLedgerStore, other: RedisLedgerStore) -> None:
        await one.start()
        await other.start()
        await _wait_until(lambda: _is_exhaustive(other))
        await asyncio.to_thread(cluster.restart_node, number)

        async def has_gap() -> bool:
            client = other._client
            gap = await client.call(lambda: client.redis.get(other._lease._gap_key))
            return gap is not None

        async def refuses() -> bool:
            with suppress(StoreError):  # it may be about to connect again
                assert not await _is_exhaustive(one)
                return True
            return False

        await _wait_until(has_gap)
        await _wait_until(refuses)

    _run(cluster, tmp_path, body)
