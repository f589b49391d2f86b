"""Work on a SQLite connection, done by one thread that owns it.

So the event loop never waits for the disk. Whatever has queued up when the thread wakes is done in
one transaction.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from dovetail.storage.fault import StoreError
from dovetail.storage.faults import StoreFaults

_MAX_BATCH_JOBS = 512  # jobs in one transaction: bounds how long other processes wait

_T = TypeVar("_T")


class SqliteThread:
    """Runs functions that use the connection. `what` names the file in errors.

    `tidy` runs at the end of each transaction that wrote. `faults` hears of what fails.
    """

    __slots__ = ("_connection", "_faults", "_jobs", "_thread", "_cleanup", "_name")

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        name: str,
        cleanup: Callable[[], None],
        faults: StoreFaults,
    ) -> None:
        self._connection = connection
        self._name = name
        self._cleanup = cleanup
        self._faults = faults
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="dovetail-store", daemon=True)
        self._thread.start()

    async def read(self, operation: Callable[[], _T]) -> _T:
        """What `act` finds."""
        return await self._submit(_Job(operation, writes=False))

    async def write(self, operation: Callable[[], None]) -> None:
        """Done when it is committed."""
        await self._submit(_Job(operation, writes=True))

    async def close(self) -> None:
        """Finish what was asked for before, then close the connection."""
        if self._thread.is_alive():
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    async def _submit(self, job: "_Job[_T]") -> _T:
        if not self._thread.is_alive():
            raise StoreError(f"{self._name} is closed")
        self._jobs.put(job)
        try:
            answer = await asyncio.wrap_future(job.future)
        except (sqlite3.Error, ValueError) as error:
            self._faults.record_failure(error)
            raise StoreError(f"{self._name} failed: {error}") from error
        if job.writes:  # a disk that is full is read from all the same
            self._faults.record_success()
        return answer

    # What follows runs in the thread.

    def _work(self) -> None:
        open_ = True
        while open_:
            batch = self._batch()
            open_ = batch[-1] is not None
            self._transact([job for job in batch if job is not None])
        self._connection.close()

    def _batch(self) -> "list[_Job[Any] | None]":
        """The next job, and what else is waiting behind it, up to the end."""
        batch = [self._jobs.get()]
        while batch[-1] is not None and len(batch) < _MAX_BATCH_JOBS:
            try:
                batch.append(self._jobs.get_nowait())
            except Empty:
                break
        return batch

    def _transact(self, batch: "list[_Job[Any]]") -> None:
        """Do the jobs in their order; the writes are told done when all of them are committed."""
        writes = any(job.writes for job in batch)
        try:
            if writes:
                self._connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                job.run()
            if writes:
                self._cleanup()
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # it may have been rolled back already
                self._connection.execute("ROLLBACK")
            for job in batch:
                job.recover(error)
        for job in batch:
            job.resolve()


class _Job(Generic[_T]):
    """A piece of work for the thread, and its answer, which is told after the commit."""

    __slots__ = ("_operation", "_error", "_result", "future", "writes")

    def __init__(self, act: Callable[[], _T], *, writes: bool) -> None:
        self._operation = act
        self._error: Exception | None = None
        self._result: list[_T] = []
        self.writes = writes
        self.future: Future[_T] = Future()

    def run(self) -> None:
        """Do it. Raises only what spoils the transaction for the others too."""
        try:
            self._result = [self._operation()]
        except Exception as error:
            self._error = error
            if self.writes and isinstance(error, sqlite3.Error):
                raise

    def recover(self, error: Exception) -> None:
        """Its transaction failed: a write is lost with it, a read needs none."""
        if self.writes:
            self._error = error
        elif not self._result and self._error is None:
            self.run()

    def resolve(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # nobody waits any more; the work is done all the same
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result[0])
