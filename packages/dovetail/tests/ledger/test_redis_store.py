"""Redis failures: unreachable, unresponsive, rejecting writes, and recovery."""

import asyncio
import logging
import signal
from collections.abc import Iterator

import pytest
from ledger_entries import turn
from redis.asyncio import Redis
from redis_server import RedisServer

from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.store import LedgerStats
from dovetail.storage.faults import StoreError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer()
    made.start()
    yield made
    made.remove()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage().split()[0] for record in found]


def test_entries_are_stored_after_an_outage(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = Clock()
        store = RedisLedgerStore(server.url, clock=clock)
        await store.put(turn("e1", calls=("c1",)))
        assert await store.get("t", "e1") is not None

        server.stop()
        for _ in range(3):
            clock.now += 10
            assert await store.get("t", "e1") is None
        assert await store.find_by_call("t", "c1") == ()
        with pytest.raises(StoreError):  # not the same as an empty result
            await store.find_by_chain("t", b"chain", b"before")
        await store.touch("t", ["e1"])
        assert await store.stats() == LedgerStats(0, 0)
        await store.put(turn("e2"))
        assert (store.faults.pending, store.faults.lost, store.faults.unavailable) == (1, 0, True)
        assert _warnings(caplog) == ["store_failed", "store_write_delayed"]

        server.start()
        assert await store.get("t", "e2") is None  # not queried: still in backoff
        clock.now += 10
        await store.put(turn("e3"))
        assert await store.get("t", "e3") == turn("e3")
        assert await store.get("t", "e2") == turn("e2")  # pending entries are stored
        assert (store.faults.pending, store.faults.lost, store.faults.unavailable) == (0, 0, False)
        assert _warnings(caplog) == ["store_failed", "store_write_delayed", "store_recovered"]
        assert store.faults.late == 1
        await store.close()

    asyncio.run(main())


def test_a_short_outage_delays_operations_but_fails_none(server: RedisServer) -> None:
    async def main() -> None:
        store = RedisLedgerStore(server.url)
        await store.put(turn("e1"))
        server.stop()
        operations = [
            asyncio.create_task(store.put(turn("e2", calls=("c2",)))),
            asyncio.create_task(store.find_by_chain("t", b"chain", b"before")),
        ]
        while not store.faults.unavailable:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.start()
        await asyncio.gather(*operations)
        assert await store.get("t", "e2") == turn("e2", calls=("c2",))
        assert (store.faults.pending, store.faults.late, store.faults.lost) == (0, 0, 0)
        await store.close()

    asyncio.run(main())


def test_a_restart_between_requests_causes_no_failure(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = RedisLedgerStore(server.url, timeout=30.0)
        await store.put(turn("e1"))
        server.stop()
        server.start()
        await store.put(turn("e2"))
        assert await store.get("t", "e2") is not None
        await store.close()
        assert (store.faults.pending, store.faults.failures) == (0, 0)

    asyncio.run(main())
    assert _warnings(caplog) == []


def test_an_unresponsive_server_does_not_delay_requests(server: RedisServer) -> None:
    async def main() -> None:
        clock = Clock()
        store = RedisLedgerStore(server.url, timeout=0.05, clock=clock)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        assert await store.get("t", "e1") is None
        clock.now += 10  # the outage is no longer short: nothing is repeated
        failures = store.faults.failures
        await store.put(turn("e1"))
        assert (store.faults.pending, store.faults.failures) == (1, failures + 1)
        server.process.send_signal(signal.SIGCONT)
        await store.close()
        store = RedisLedgerStore(server.url, clock=clock)
        await store.put(turn("e1"))
        assert await store.get("t", "e1") is not None
        await store.close()

    asyncio.run(main())


def test_a_server_that_was_never_reachable(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = RedisLedgerStore("redis://127.0.0.1:1")
        await store.put(turn("e1"))
        assert await store.get("t", "e1") is None
        assert store.faults.pending == 1
        await store.close()

    asyncio.run(main())
    assert _warnings(caplog) == ["store_failed", "store_write_delayed"]


def test_full_server_rejects_writes_and_serves_reads(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = RedisLedgerStore(server.url, timeout=30.0)
        await store.put(turn("e1"))
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory", "1")
        for number in range(3):
            await store.put(turn(f"f{number}"))
            assert await store.get("t", "e1") is not None
        assert (store.faults.pending, store.faults.late) == (3, 3)
        await store.close()

    asyncio.run(main())
    # Delayed writes are logged for the first and the second.
    assert _warnings(caplog) == ["store_failed", "store_write_delayed", "store_write_delayed"]


def test_several_servers_share_one_store(server: RedisServer) -> None:
    async def main() -> None:
        one, two, other = (
            RedisLedgerStore(server.url, prefix=prefix, timeout=30.0) for prefix in ("p", "p", "q")
        )
        await one.put(turn("e1", calls=("call_1",)))
        assert await two.find_by_call("t", "call1") == ("e1",)
        assert await two.get("t", "e1") == turn("e1", calls=("call_1",))
        assert await other.get("t", "e1") is None
        assert (await two.stats()).entries == 1
        assert await other.stats() == LedgerStats(0, 0)
        for store in (one, two, other):
            await store.close()

    asyncio.run(main())


def test_every_key_expires(server: RedisServer) -> None:
    async def main() -> dict[str, int]:
        store = RedisLedgerStore(server.url, max_age=1000.0, timeout=30.0)
        await store.put(turn("e1", calls=("c1",)))
        await store.close()
        async with Redis.from_url(server.url) as client:
            return {str(key): await client.ttl(key) for key in await client.keys()}

    kinds = {key.split(":")[2]: left for key, left in asyncio.run(main()).items()}
    assert set(kinds) == {"entry", "call", "chain"}
    assert 3990 <= kinds.pop("chain") <= 4000  # it shows that an expired turn existed
    assert all(990 <= left <= 1000 for left in kinds.values())
