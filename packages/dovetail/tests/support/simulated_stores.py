"""The ledger stores of the product in simulated time, with failures and crashes.

SQLite is real, but runs without a thread; Redis is a fake (`simulated_redis`).
"""

import asyncio
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar
from unittest.mock import patch

from simulated_redis import EPOCH, Link, SimulatedRedis, SimulatedRedisServer

from dovetail.ledger import redis_lease, redis_store, sqlite_schema, sqlite_store
from dovetail.ledger.redis_store import RedisLedgerStore
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.storage import redis_client
from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.sqlite import Connection, SqliteThread, _Job

StoreKind = Literal["sqlite", "redis"]
LedgerStore = SqliteLedgerStore | RedisLedgerStore
GAP_KEY = "dovetail:gap"
_T = TypeVar("_T")


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def wall_time() -> float:
    return EPOCH + loop_time()


class _SimulatedTime:
    """In place of the module `time`."""

    monotonic = staticmethod(loop_time)
    time = staticmethod(wall_time)


class _SimulatedThread(SqliteThread):
    """Runs the product's transactions in the event loop, in order and after a delay."""

    __slots__ = ("_free_at", "link")

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        cleanup: Callable[[], None],
        faults: StoreFaults,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._cleanup = cleanup
        self._committed = committed
        self._faults = faults
        self._free_at = 0.0
        self.link = Link(random.Random(0))

    async def _submit(self, job: "_Job[_T]") -> _T:
        link = self.link
        mode = link.mode
        if link.dead or mode == "refuse" or (mode == "lose_response" and not job.writes):
            self._fail()
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def execute() -> None:
            if link.dead:  # what the thread has not executed yet is lost
                return
            self._transact([job])
            if not done.done():
                done.set_result(None)

        delay = link.lag() if mode == "lag" else link.latency()
        self._free_at = max(self._free_at, loop.time()) + delay
        loop.call_at(self._free_at, execute)
        try:
            await done
        except asyncio.CancelledError:
            job.future.cancel()
            raise
        if mode == "lose_response":
            self._fail()
        try:
            result = job.future.result()
        except (sqlite3.Error, ValueError) as error:
            self._faults.record_failure(error)
            raise StoreError(str(error)) from error
        return result

    def _fail(self) -> NoReturn:
        self._faults.record_failure(sqlite3.OperationalError("disk I/O error"))
        raise StoreError("disk I/O error")


class Storage:
    """What the processes of one history share, and what survives their crashes."""

    def __init__(self, kind: StoreKind, max_bytes: int, max_age: float) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="dvt", dir=_memory_folder()))
        self.server = SimulatedRedisServer(loop_time)
        self._max_bytes = max_bytes
        self._max_age = max_age
        if kind == "sqlite":
            (self.folder / "turns.sqlite").write_bytes(_empty_database())

    def open(self, link: Link, place: str) -> LedgerStore:
        """Open the store in a new process. `place` names its data folder, for Redis."""
        if self.kind == "sqlite":
            store = SqliteLedgerStore(
                self.folder / "turns.sqlite",
                max_age=self._max_age,
                max_bytes=self._max_bytes,
                clock=wall_time,
            )
            assert isinstance(store._thread, _SimulatedThread)
            store._thread.link = link
            return store
        _Connections.next = SimulatedRedis(self.server, link)
        return RedisLedgerStore(
            "redis://simulated",
            max_age=self._max_age,
            clock=loop_time,
            folder=self.folder / place,
        )

    @property
    def has_gap(self) -> bool:
        """Whether lookups are not exhaustive for the rest of the time, not only for a while."""
        return self.kind == "sqlite" or self.server.execute(("get", (GAP_KEY,), {})) is not None

    def lose_folder(self, place: str) -> None:
        """Lose the data folder of a process that uses Redis, as with the end of a container."""
        shutil.rmtree(self.folder / place, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_store(store: LedgerStore) -> None:
    """End the tasks of a store and close its files, as the end of its process does."""
    if isinstance(store, SqliteLedgerStore):
        if store._retry_task is not None:
            store._retry_task.cancel()
        store._connection.close()
        store._gap_file.close()
        store._position_file.close()
        return
    for task in (store._lease._task, store._retry_task):
        if task is not None:
            task.cancel()
    assert store._lease._slot is not None
    store._lease._slot.release()


class _Connections:
    """In place of `redis.asyncio.Redis`: the client that was created for the next store."""

    next: SimulatedRedis

    @classmethod
    def from_url(cls, url: str, **options: Any) -> SimulatedRedis:
        return cls.next


@contextmanager
def simulated_stores(abandoned_seconds: float) -> Iterator[None]:
    """Let stores run in simulated time. An expired lease is removed after some seconds."""
    with (
        patch.object(sqlite_store, "SqliteThread", _SimulatedThread),
        patch.object(redis_client, "Redis", _Connections),
        patch.object(redis_lease, "time", _SimulatedTime),
        patch.object(redis_store, "time", _SimulatedTime),
        patch.object(redis_lease, "_ABANDONED_SECONDS", abandoned_seconds),
    ):
        yield


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@cache
def _empty_database() -> bytes:
    """A database without rows: copying it is faster than creating its tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turns.sqlite"
        sqlite_schema.connect_ledger(path).close()
        return path.read_bytes()
