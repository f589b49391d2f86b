"""Several servers on one Redis: a lookup is exhaustive only if no turn can be missing there."""

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ledger_entries import turn
from redis_server import RedisServer

from dovetail.ledger.entry import FINISH_INTERRUPTED
from dovetail.ledger.redis_lease import LEASE_SECONDS, RedisLease
from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.store import OpenTurn, TurnMark
from dovetail.storage.faults import StoreError

FIRST = OpenTurn("t", "first", b"before")
SECOND = OpenTurn("t", "second", b"before", "s")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    redis = RedisServer()
    redis.start()
    yield redis
    redis.remove()


class Stores:
    """Stores of different processes."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._opened: list[RedisLedgerStore] = []

    def open(self, name: str) -> RedisLedgerStore:
        store = RedisLedgerStore(self._server.url, folder=self._folder / name)
        self._opened.append(store)
        return store

    async def crash(self, store: RedisLedgerStore) -> None:
        """End a store as a crash of its process does."""
        self._opened.remove(store)
        assert store._lease._task is not None
        store._lease._task.cancel()
        if store._retry_task is not None:
            store._retry_task.cancel()
        assert store._lease._slot is not None
        store._lease._slot.release()
        await store._client.close()

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


def _run(server: RedisServer, folder: Path, body: Callable[[Stores], Awaitable[None]]) -> None:
    async def main() -> None:
        stores = Stores(server, folder)
        try:
            await body(stores)
        finally:
            await stores.close()

    asyncio.run(main())


async def _is_exhaustive(store: RedisLedgerStore) -> bool:
    return (await store.find_by_chain("t", b"chain", b"before")).exhaustive


async def _wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _wait_exhaustive(store: RedisLedgerStore) -> None:
    async def check() -> bool:
        try:
            return await _is_exhaustive(store)
        except StoreError:
            return False

    await _wait_until(check)


def test_open_turns_are_seen_by_others_until_they_are_stored(
    server: RedisServer, tmp_path: Path
) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        await one.open_turn(SECOND)
        found = await other.find_by_chain("t", b"chain", b"before")
        assert set(found.marks) == {TurnMark("first", ""), TurnMark("second", "s")}
        assert found.exhaustive
        await one.put(turn("first"))
        await one.close_turn(SECOND)
        assert await other.find_by_chain("t", b"chain", b"before") == (("first",), (), True)

    _run(server, tmp_path, body)


def test_interrupted_turn_stays_open(server: RedisServer, tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        store = stores.open("one")
        await store.open_turn(FIRST)
        await store.put(turn("first", finish=FINISH_INTERRUPTED))
        found = await store.find_by_chain("t", b"chain", b"before")
        assert found.marks == (TurnMark("first", ""),)

    _run(server, tmp_path, body)


def test_turn_that_cannot_be_announced_waits_for_the_end_of_the_lease(
    server: RedisServer, tmp_path: Path
) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        await one.put(turn("first"))
        assert await _is_exhaustive(other)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreError):
            await one.open_turn(SECOND)
        start = time.monotonic()
        await one.record_gap(SECOND, "frozen")
        assert time.monotonic() - start <= LEASE_SECONDS + 1
        server.process.send_signal(signal.SIGCONT)
        while True:  # until the other store responds again
            try:
                found = await other.find_by_chain("t", b"chain", b"before")
                break
            except StoreError:
                await asyncio.sleep(0.05)
        assert not found.exhaustive or TurnMark("second", "s") in found.marks
        await _wait_exhaustive(other)
        found = await other.find_by_chain("t", b"chain", b"before")
        assert found.marks == (TurnMark("second", "s"),)

    _run(server, tmp_path, body)


def test_crashed_server_makes_lookups_uncertain_until_it_is_back(
    server: RedisServer, tmp_path: Path
) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        await other.open_turn(SECOND)
        await stores.crash(one)

        async def expired() -> bool:
            return not await _is_exhaustive(other)

        await _wait_until(expired)
        again = stores.open("one")
        await again.open_turn(OpenTurn("t", "third", b"elsewhere"))
        assert await _is_exhaustive(other)

    _run(server, tmp_path, body)


def test_crash_during_an_outage_leaves_a_gap(server: RedisServer, tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        await one.record_gap(SECOND, "unreachable")
        await stores.crash(one)
        server.process.send_signal(signal.SIGCONT)
        again = stores.open("one")
        await again.open_turn(OpenTurn("t", "third", b"elsewhere"))
        assert not await _is_exhaustive(other)
        await asyncio.sleep(1.0)
        assert not await _is_exhaustive(other)

    _run(server, tmp_path, body)


def test_clean_stop_leaves_no_doubt(server: RedisServer, tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        await one.close()
        stores._opened.remove(one)
        await asyncio.sleep(LEASE_SECONDS + 0.1)
        assert await _is_exhaustive(other)

    _run(server, tmp_path, body)


def test_redis_that_was_restarted_may_have_lost_turns(server: RedisServer, tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        store = stores.open("one")
        await store.open_turn(FIRST)
        assert await _is_exhaustive(store)
        server.stop()
        server.start()
        newcomer = stores.open("new")
        await newcomer.open_turn(SECOND)
        assert not await _is_exhaustive(store)

        async def reported() -> bool:
            return not await _is_exhaustive(newcomer)

        await _wait_until(reported)

    _run(server, tmp_path, body)


def test_crash_that_loses_the_data_folder_leaves_a_gap(server: RedisServer, tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.open_turn(FIRST)
        assert await _is_exhaustive(other)
        await stores.crash(one)
        shutil.rmtree(tmp_path / "one")
        again = stores.open("one")
        await again.open_turn(SECOND)
        assert not await _is_exhaustive(other)

    _run(server, tmp_path, body)


def test_lease_is_acquired_when_the_server_starts(server: RedisServer, tmp_path: Path) -> None:
    """Otherwise others would not know of a server whose first turn cannot be announced."""

    async def body(stores: Stores) -> None:
        one, other = stores.open("one"), stores.open("other")
        await one.start()
        await other.open_turn(FIRST)
        await stores.crash(one)
        assert await _is_exhaustive(other)

        async def expired() -> bool:
            return not await _is_exhaustive(other)

        await _wait_until(expired)

    _run(server, tmp_path, body)


def test_restarted_server_without_redis_waits_for_the_end_of_the_old_lease(tmp_path: Path) -> None:
    async def main() -> None:
        store = RedisLedgerStore("unix:///nonexistent/socket", folder=tmp_path)
        start = time.monotonic()
        await store.record_gap(FIRST, "unreachable")
        assert time.monotonic() - start >= LEASE_SECONDS - 0.1
        start = time.monotonic()
        await store.record_gap(SECOND, "unreachable")
        assert time.monotonic() - start < 0.5
        await store.close()

    asyncio.run(main())


def test_close_ends_a_renewal_that_swallows_its_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renew(lease: RedisLease) -> bool:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return False

    async def main() -> None:
        monkeypatch.setattr(RedisLease, "_renew", renew)
        store = RedisLedgerStore("unix:///nonexistent/socket", folder=tmp_path)
        await store.start()
        await asyncio.sleep(0.6)
        async with asyncio.timeout(10):
            await store.close()

    asyncio.run(main())
