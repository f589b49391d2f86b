"""Entries in one SQLite file: they survive restarts, and several processes may share them.

One thread owns the connection, so the event loop never waits for the disk. Whatever has queued up
when the thread wakes is done in one transaction.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from dovetail.ledger.entry import Entry
from dovetail.ledger.store.codec import decode_entry, encode_entry
from dovetail.ledger.store.schema import connect
from dovetail.ledger.store.store import (
    MAX_AGE,
    NEWEST,
    Clock,
    StoreError,
    StoreStats,
    call_keys,
)

MAX_BYTES = 2 << 30

_BATCH = 512  # jobs in one transaction: bounds how long other processes wait
_ROW_COST = 300  # the row's other columns and its places in the indexes
_SLACK = 4 << 20  # bytes freed at once: not on every put, and never a long pause
_EXPIRED = 1000  # rows past their age dropped in one transaction; they are not seen in any case

_T = TypeVar("_T")


class SqliteStore:
    """The default store."""

    __slots__ = ("_clock", "_connection", "_jobs", "_max_age", "_max_bytes", "_thread", "path")

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_age: float = MAX_AGE,
        clock: Clock = time.time,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._connection = connect(path)
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="dovetail-ledger", daemon=True)
        self._thread.start()

    async def get(self, tenant: str, id: str) -> Entry | None:
        """The entry, or None if this tenant has none of that id."""
        return await self._read(lambda: self._get(tenant, id))

    async def by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Ids of the entries that made this call, newest first."""
        query = (
            "SELECT id FROM calls JOIN entries USING (seq) "
            "WHERE calls.tenant = ? AND key = ? AND used >= ? ORDER BY seq DESC LIMIT ?"
        )
        return await self._read(lambda: self._ids(query, tenant, call_key))

    async def by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Ids of the entries whose `chain` is this, newest first."""
        query = (
            "SELECT id FROM entries "
            "WHERE tenant = ? AND chain = ? AND used >= ? ORDER BY seq DESC LIMIT ?"
        )
        return await self._read(lambda: self._ids(query, tenant, chain))

    async def put(self, entry: Entry) -> None:
        """Keep it. Done when it is on its way to the disk: a crash of the process loses nothing."""
        await self._write(lambda: self._put(entry))

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """These were used again."""
        rows = [(tenant, id) for id in ids]
        if rows:
            await self._write(lambda: self._touch(rows))

    async def version(self) -> int | None:
        """Changes with every commit of another connection."""
        return await self._read(self._version)

    async def stats(self) -> StoreStats:
        """How much is held. Entries past their age count until the next write."""
        return await self._read(self._stats)

    async def close(self) -> None:
        """Finish what was asked for before, then close the file."""
        if self._thread.is_alive():
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    async def _read(self, act: Callable[[], _T]) -> _T:
        return await self._ask(_Job(act, writes=False))

    async def _write(self, act: Callable[[], None]) -> None:
        await self._ask(_Job(act, writes=True))

    async def _ask(self, job: "_Job[_T]") -> _T:
        if not self._thread.is_alive():
            raise StoreError(f"the ledger {self.path} is closed")
        self._jobs.put(job)
        try:
            return await asyncio.wrap_future(job.answer)
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(f"the ledger {self.path} failed: {error}") from error

    # What follows runs in the worker's thread.

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
        while batch[-1] is not None and len(batch) < _BATCH:
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
                self._expire()
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # it may have been rolled back already
                self._connection.execute("ROLLBACK")
            for job in batch:
                job.recover(error)
        for job in batch:
            job.tell()

    def _get(self, tenant: str, id: str) -> Entry | None:
        query = "SELECT body FROM entries WHERE tenant = ? AND id = ? AND used >= ?"
        row = self._connection.execute(query, (tenant, id, self._oldest())).fetchone()
        return decode_entry(row[0]) if row else None

    def _ids(self, query: str, tenant: str, name: str | bytes) -> tuple[str, ...]:
        rows = self._connection.execute(query, (tenant, name, self._oldest(), NEWEST))
        return tuple(id for (id,) in rows)

    def _put(self, entry: Entry) -> None:
        body = encode_entry(entry)
        size = len(body) + _ROW_COST
        if size > self._max_bytes:
            return
        self._connection.execute(
            "INSERT INTO entries (tenant, id, chain, used, size, body) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO UPDATE SET used = max(used, excluded.used)",
            (entry.tenant, entry.id, entry.chain, self._clock(), size, body),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO calls (tenant, key, seq) "
            "SELECT tenant, ?, seq FROM entries WHERE tenant = ? AND id = ?",
            [(key, entry.tenant, entry.id) for key in call_keys(entry)],
        )
        self._make_room()

    def _touch(self, rows: list[tuple[str, str]]) -> None:
        now = self._clock()
        self._connection.executemany(
            "UPDATE entries SET used = max(used, ?) WHERE tenant = ? AND id = ? AND used >= ?",
            [(now, tenant, id, now - self._max_age) for tenant, id in rows],
        )

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _stats(self) -> StoreStats:
        return StoreStats(*self._connection.execute("SELECT entries, bytes FROM totals").fetchone())

    def _expire(self) -> None:
        """Drop what is too old. Each row is dropped once."""
        self._connection.execute(
            "DELETE FROM entries WHERE seq IN "
            "(SELECT seq FROM entries WHERE used < ? ORDER BY used LIMIT ?)",
            (self._oldest(), _EXPIRED),
        )

    def _make_room(self) -> None:
        """Drop the least recently used while there is too much."""
        held = self._stats().bytes
        if held <= self._max_bytes:
            return
        target = self._max_bytes - min(self._max_bytes // 16, _SLACK)
        doomed: list[tuple[int]] = []
        for seq, size in self._connection.execute(
            "SELECT seq, size FROM entries ORDER BY used, seq"
        ):
            if held <= target:
                break
            held -= size
            doomed.append((seq,))
        self._connection.executemany("DELETE FROM entries WHERE seq = ?", doomed)

    def _oldest(self) -> float:
        return self._clock() - self._max_age


class _Job(Generic[_T]):
    """A piece of work for the thread, and its answer, which is told after the commit."""

    __slots__ = ("_act", "_error", "_result", "answer", "writes")

    def __init__(self, act: Callable[[], _T], *, writes: bool) -> None:
        self._act = act
        self._error: Exception | None = None
        self._result: list[_T] = []
        self.writes = writes
        self.answer: Future[_T] = Future()

    def run(self) -> None:
        """Do it. Raises only what spoils the transaction for the others too."""
        try:
            self._result = [self._act()]
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

    def tell(self) -> None:
        if not self.answer.set_running_or_notify_cancel():
            return  # nobody waits any more; the work is done all the same
        if self._error is not None:
            self.answer.set_exception(self._error)
        else:
            self.answer.set_result(self._result[0])
