"""SQLite access: a thread that owns the connection, file setup, and size limits of a table.

The event loop never waits for the disk. Jobs that have queued up when the thread wakes run in one
transaction.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

from dovetail.storage.faults import StoreError, StoreFaults

_MAX_BATCH_JOBS = 512  # per transaction: limits how long other processes wait

_T = TypeVar("_T")


class Connection(Protocol):
    """The connection of a store."""

    def execute(self, query: str, parameters: Iterable[Any] = ..., /) -> sqlite3.Cursor: ...

    def executemany(self, query: str, rows: Iterable[Iterable[Any]], /) -> sqlite3.Cursor: ...

    def reopen_if_replaced(self) -> None:
        """Open the file again if it was deleted or replaced; called before each transaction."""

    def close(self) -> None: ...


class SqliteThread:
    """A thread that runs functions on the connection. `name` is used in error messages, too.

    `cleanup` runs at the end of each transaction that wrote, `committed` after its commit, before
    its results are delivered. Failures are recorded in `faults`.
    """

    __slots__ = ("_cleanup", "_closed", "_committed", "_connection", "_faults", "_jobs", "_thread")

    def __init__(
        self,
        connection: "Connection",
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
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def read(self, operation: Callable[[], _T]) -> _T:
        """Run a read operation and return its result."""
        return await self._submit(_Job(operation, writes=False))

    async def write(self, operation: Callable[[], None]) -> None:
        """Run a write operation. Returns after the commit."""
        await self._submit(_Job(operation, writes=True))

    async def close(self) -> None:
        """Finish the queued jobs, then close the connection."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _submit(self, job: "_Job[_T]") -> _T:
        if self._closed:
            raise StoreError(f"{self._thread.name} is closed")
        self._jobs.put(job)
        try:
            result = await job.future
        except (sqlite3.Error, ValueError) as error:
            self._faults.record_failure(error)
            raise StoreError(f"{self._thread.name} failed: {error}") from error
        if job.writes:  # reads do not count: a full disk can still be read
            self._faults.record_success()
        return result

    # The methods below run in the thread.

    def _work(self) -> None:
        batch: list[_Job[Any] | None] = []
        try:
            while None not in batch:
                batch = self._batch()
                self._transact([job for job in batch if job is not None])
            self._connection.close()
        finally:
            self._closed = True

    def _batch(self) -> "list[_Job[Any] | None]":
        """Return the next job and the jobs queued after it, up to the limit or the end marker."""
        batch = [self._jobs.get()]
        while batch[-1] is not None and len(batch) < _MAX_BATCH_JOBS:
            try:
                batch.append(self._jobs.get_nowait())
            except Empty:
                break
        return batch

    def _transact(self, batch: "list[_Job[Any]]") -> None:
        """Run the jobs in order. Writes are resolved after the commit of the whole batch."""
        writes = any(job.writes for job in batch)
        try:
            self._connection.reopen_if_replaced()
            if writes:
                self._connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                job.run()
            if writes:
                self._cleanup()
                self._connection.execute("COMMIT")
                self._committed()
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # it may have been rolled back already
                self._connection.execute("ROLLBACK")
            for job in batch:
                job.recover(error)
        for loop in {job.loop for job in batch}:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_resolve_all, [job for job in batch if job.loop is loop])


def _resolve_all(jobs: "list[_Job[Any]]") -> None:
    for job in jobs:
        job.resolve()


class _Job(Generic[_T]):
    """A job of the thread and its result, which is delivered after the commit.

    The thread wakes the event loop once per batch. A `concurrent.futures.Future` would add a lock
    and a step of the loop to every job.
    """

    __slots__ = ("_error", "_operation", "_result", "future", "loop", "writes")

    def __init__(self, operation: Callable[[], _T], *, writes: bool) -> None:
        self._operation = operation
        self._error: Exception | None = None
        self._result: list[_T] = []
        self.writes = writes
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_T] = self.loop.create_future()

    def run(self) -> None:
        """Run the operation. Raises only errors that invalidate the whole transaction."""
        try:
            self._result = [self._operation()]
        except Exception as error:
            self._error = error
            if self.writes and isinstance(error, sqlite3.Error):
                raise

    def recover(self, error: Exception) -> None:
        """Handle a failed transaction: fail a write with it, run a read again."""
        if self.writes:
            self._error = error
        elif not self._result and self._error is None:
            self.run()

    def resolve(self) -> None:
        """Deliver the result. Runs in the event loop."""
        if self.future.done():
            return  # the caller was cancelled, but the job has run
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result[0])


BUSY_TIMEOUT_SECONDS = 5.0  # how long to wait while another process writes

_PAGE_BYTES = 8192  # a turn takes 2 to 3 KB: with pages of 4 KB a third of the file would be unused
_MAX_WAL_BYTES = 16 << 20  # retained after a checkpoint


@dataclass(frozen=True)
class DatabaseSchema:
    """The schema of one kind of database file.

    `application_id` distinguishes our files from those of other programs, and the kinds of files.
    `migrations` maps an older version to the statements that upgrade it to the next.
    """

    name: str
    application_id: int
    version: int
    tables: str
    migrations: Mapping[int, str] = field(default_factory=dict)


def open_database(path: Path, schema: DatabaseSchema) -> sqlite3.Connection:
    """Open or create a file. Raises StoreError if it is damaged or belongs to another program."""
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file holds user content. SQLite creates its other files with the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, path, schema)
    except (sqlite3.Error, OSError, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot open the {schema.name} {path}: {error}; if the file is damaged or belongs to "
            "another program, move it or choose another data folder"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> None:
    # One transaction for all reads: another process may create the tables concurrently.
    connection.execute("BEGIN")
    _check_owner(connection, path, schema)
    connection.execute("COMMIT")
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # affects new files only
    _enable_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    # Check again under the lock: another process may have created the tables meanwhile.
    version = _check_owner(connection, path, schema)
    if version == 0:
        _run_script(connection, schema.tables)
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
    else:
        for older in range(version, schema.version):
            _run_script(connection, schema.migrations[older])
    connection.execute(f"PRAGMA user_version = {schema.version}")
    connection.execute("COMMIT")


def _check_owner(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> int:
    """Return the schema version, 0 for an empty file. Raises StoreError for a foreign file."""
    version = _query_int(connection, "PRAGMA user_version")
    application = _query_int(connection, "PRAGMA application_id")
    tables = _query_int(connection, "SELECT count(*) FROM sqlite_master")
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != schema.application_id:
        raise StoreError(f"{path} is not a {schema.name}: another program or store created it")
    if version != schema.version and version not in schema.migrations:
        raise StoreError(
            f"the {schema.name} {path} has schema version {version}, "
            f"but this version of Dovetail supports version {schema.version}"
        )
    return version


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log, with retries: SQLite fails if two processes do so at once."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run the statements individually: `executescript` would commit the transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            connection.execute(pending.strip())
            pending = ""


def _query_int(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)


def _seconds_since_boot() -> float:
    """Return the time since boot, including time in standby where the system counts it."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


class ExpiryClock:
    """The system's clock, but never ahead of the time that has passed since the process started.

    If the system's clock jumps forward, for example because an operator sets a wrong year, stored
    data would otherwise expire and be deleted at once.
    """

    __slots__ = ("_clock", "_elapsed", "_offset")

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = _seconds_since_boot,
    ) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._offset = clock() - elapsed()

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return min(self._clock(), self._offset + self._elapsed())


_EVICT_BYTES = 4 << 20  # freed per eviction: avoids an eviction on every put as well as long pauses
_MAX_EXPIRED_ROWS = 1000  # deleted per transaction; reads skip expired rows anyway


class TableBounds:
    """Size and age limits of a table with columns `seq`, `used`, `size`, and a table `totals`."""

    __slots__ = ("_clock", "_connection", "_expiry_clock", "_max_age", "_table", "max_bytes")

    def __init__(
        self,
        connection: "Connection",
        table: str,
        *,
        max_bytes: int,
        max_age: float,
        clock: Callable[[], float],
        expiry_clock: Callable[[], float] | None = None,
    ) -> None:
        """`expiry_clock` is the clock by which rows expire, by default `clock`."""
        self._connection = connection
        self._expiry_clock = expiry_clock or clock
        self._table = table
        self.max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    def min_used(self) -> float:
        """Return the time of last use before which rows are expired."""
        return self._expiry_clock() - self._max_age

    def is_expired(self, used: float) -> bool:
        return used <= self.min_used()

    def totals(self) -> tuple[int, int]:
        """Return the number of rows and bytes. Expired rows count until the next write."""
        query = f"SELECT {self._table}, bytes FROM totals"
        rows, size = self._connection.execute(query).fetchone()
        return rows, size

    def delete_expired(self) -> None:
        """Delete expired rows, up to a limit per call."""
        self._connection.execute(
            f"DELETE FROM {self._table} WHERE seq IN "
            f"(SELECT seq FROM {self._table} WHERE used < ? ORDER BY used LIMIT ?)",
            (self.min_used(), _MAX_EXPIRED_ROWS),
        )

    def evict(self) -> None:
        """Delete the least recently used rows if the table exceeds its size limit."""
        _, total = self.totals()
        if total <= self.max_bytes:
            return
        target = self.max_bytes - min(self.max_bytes // 16, _EVICT_BYTES)
        evicted: list[tuple[int]] = []
        query = f"SELECT seq, size FROM {self._table} ORDER BY used, seq"
        for seq, size in self._connection.execute(query):
            if total <= target:
                break
            total -= size
            evicted.append((seq,))
        self._connection.executemany(f"DELETE FROM {self._table} WHERE seq = ?", evicted)
