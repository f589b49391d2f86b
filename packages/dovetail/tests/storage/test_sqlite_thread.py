"""The thread that owns a connection: one transaction and one wake-up of the loop per batch."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from dovetail.storage.faults import StoreError, StoreFaults
from dovetail.storage.sqlite import SqliteThread


class CountingConnection:
    """A connection that counts its transactions."""

    def __init__(self, path: Path) -> None:
        self._inner = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._inner.execute("CREATE TABLE numbers (number INTEGER NOT NULL)")
        self.commits = 0

    def execute(self, query: str, parameters: Any = ()) -> sqlite3.Cursor:
        self.commits += query == "COMMIT"
        return self._inner.execute(query, parameters)

    def executemany(self, query: str, rows: Any) -> sqlite3.Cursor:
        return self._inner.executemany(query, rows)

    def reopen_if_replaced(self) -> None: ...

    def close(self) -> None:
        self._inner.close()


def write(thread: SqliteThread, connection: CountingConnection, query: str) -> "asyncio.Task[None]":
    def operation() -> None:
        connection.execute(query)

    return asyncio.create_task(thread.write(operation))


def create_thread(connection: CountingConnection) -> SqliteThread:
    return SqliteThread(
        connection, name="numbers", cleanup=lambda: None, faults=StoreFaults("numbers")
    )


def test_jobs_of_a_batch_wake_the_event_loop_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wake-up would delay the commit of a turn."""

    async def main() -> None:
        connection = CountingConnection(tmp_path / "numbers.sqlite")
        thread, go, wakes = create_thread(connection), threading.Event(), 0
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def count(*args: Any, **more: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return call(*args, **more)

        blocked = asyncio.ensure_future(thread.read(lambda: go.wait(10)))
        writes = [
            write(thread, connection, f"INSERT INTO numbers VALUES ({at})") for at in range(20)
        ]
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        go.set()
        await asyncio.gather(blocked, *writes)
        assert wakes <= 2  # the blocked read may be a batch of its own
        assert connection.commits == 1
        rows = await thread.read(lambda: connection.execute("SELECT * FROM numbers").fetchall())
        assert [number for (number,) in rows] == list(range(20))
        await thread.close()

    asyncio.run(main())


def test_cancelled_caller_does_not_stop_its_job_or_others(tmp_path: Path) -> None:
    async def main() -> None:
        connection = CountingConnection(tmp_path / "numbers.sqlite")
        thread, go = create_thread(connection), threading.Event()
        blocked = asyncio.ensure_future(thread.read(lambda: go.wait(10)))
        cancelled = write(thread, connection, "INSERT INTO numbers VALUES (1)")
        await asyncio.sleep(0)
        cancelled.cancel()
        go.set()
        await blocked
        count = "SELECT count(*) FROM numbers"
        assert await thread.read(lambda: connection.execute(count).fetchone()) == (1,)
        with pytest.raises(StoreError, match="no such table"):
            await write(thread, connection, "DELETE FROM other_numbers")
        await thread.close()

    asyncio.run(main())
