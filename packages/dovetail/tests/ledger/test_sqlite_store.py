"""The ledger file: restarts, several processes, foreign files and damaged files."""

import asyncio
import random
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from ledger_entries import turn

from dovetail.ledger.entry import LedgerEntry, pack_ids
from dovetail.ledger.sqlite_schema import SCHEMA_VERSION, connect_ledger
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.storage.faults import StoreError


def test_entries_survive_a_restart(tmp_path: Path) -> None:
    entry = turn("e1", generated=pack_ids(range(500)), calls=("call_1",))

    async def write() -> None:
        store = SqliteLedgerStore(tmp_path / "new" / "ledger.db")
        await store.put(entry)
        await store.close()

    async def read() -> None:
        store = SqliteLedgerStore(tmp_path / "new" / "ledger.db")
        assert await store.get("t", "e1") == entry
        assert await store.find_by_call("t", "call1") == ("e1",)
        assert (await store.stats()).entries == 1
        await store.close()

    asyncio.run(write())
    asyncio.run(read())


def test_close_finishes_pending_writes(tmp_path: Path) -> None:
    async def write() -> None:
        store = SqliteLedgerStore(tmp_path / "ledger.db")
        puts = [asyncio.create_task(store.put(turn(f"e{number}"))) for number in range(300)]
        await asyncio.sleep(0)  # let the writers queue
        await store.close()
        await asyncio.gather(*puts)
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.get("t", "e1")

    asyncio.run(write())
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as file, file:
        assert file.execute("SELECT count(*) FROM entries").fetchone() == (300,)
        assert file.execute("SELECT entries FROM totals").fetchone() == (300,)
    file.close()


def test_a_write_completes_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteLedgerStore(tmp_path / "ledger.db")
        put = asyncio.create_task(store.put(turn("e1")))
        await asyncio.sleep(0)
        put.cancel()
        assert await store.get("t", "e1") is not None
        await store.close()

    asyncio.run(main())


def test_queued_writes_share_a_transaction(tmp_path: Path) -> None:
    async def main() -> list[str]:
        store = SqliteLedgerStore(tmp_path / "ledger.db")
        statements: list[str] = []
        store._connection._require().set_trace_callback(statements.append)
        await asyncio.gather(*(store.put(turn(f"e{number}")) for number in range(500)))
        await store.close()
        return statements

    statements = asyncio.run(main())
    assert sum(statement.startswith("INSERT INTO entries") for statement in statements) >= 500
    assert statements.count("COMMIT") <= 50


_WRITER = """
import asyncio, sys
from pathlib import Path
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from ledger_entries import turn

async def main(path, name):
    store = SqliteLedgerStore(Path(path))
    for number in range(40):
        await store.put(turn(f"{name}-{number}", calls=(f"{name}{number}",)))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_several_processes_share_one_new_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    environment = {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), name], env=environment)
        for name in "abc"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]

    async def read() -> None:
        store = SqliteLedgerStore(path)
        assert (await store.stats()).entries == 120
        for name in "abc":
            assert await store.find_by_call("t", f"{name}39") == (f"{name}-39",)
        await store.close()

    asyncio.run(read())


def test_many_threads_can_create_the_same_file_at_once(tmp_path: Path) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # interleave the steps of the threads
    try:
        for attempt in range(50):
            path = tmp_path / f"{attempt}.db"
            with ThreadPoolExecutor(4) as pool:
                for connection in pool.map(connect_ledger, [path] * 4):
                    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
                    connection.close()
    finally:
        sys.setswitchinterval(switching)


def test_waiting_for_a_locked_file_does_not_block_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteLedgerStore(tmp_path / "ledger.db")
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        put = asyncio.create_task(store.put(turn("e1")))
        for _ in range(100):  # the event loop keeps running
            await asyncio.sleep(0)
        assert not put.done()
        other.execute("COMMIT")
        other.close()
        await put
        assert await store.get("t", "e1") is not None
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("tokens", [60, 800, 50_000])
def test_the_file_stays_within_its_size_limit(tmp_path: Path, tokens: int) -> None:
    bound = 2 << 20
    chance = random.Random(tokens)

    def entry(number: int) -> LedgerEntry:
        ids = pack_ids(chance.choices(range(150_000), k=tokens))
        names = {"chain": number.to_bytes(16, "big"), "generated": ids}
        return turn(f"entry_{number:024}", (f"call_{number:024}",), **names)

    async def main() -> None:
        store = SqliteLedgerStore(tmp_path / "ledger.db", max_bytes=bound)
        count = 2 * bound // (tokens * 2 + 300)
        for first in range(0, count, 100):
            await asyncio.gather(*(store.put(entry(first + number)) for number in range(100)))
            assert (await store.stats()).bytes <= bound
        await store.close()

    asyncio.run(main())
    assert (tmp_path / "ledger.db").stat().st_size < 1.25 * bound


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE bookmarks (url TEXT)")
    file.close()


def _newer(path: Path) -> None:
    asyncio.run(SqliteLedgerStore(path).close())
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA user_version = 99")
    file.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"not a database at all" * 100), "not a database"),
        (lambda path: path.mkdir(), "cannot open"),
        (_foreign, "another program"),
        (_newer, "version 99"),
    ],
    ids=["garbage", "folder", "foreign", "newer"],
)
def test_errors_name_a_foreign_or_damaged_file(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "ledger.db"
    assert callable(make)
    make(path)
    with pytest.raises(StoreError, match=message) as refused:
        SqliteLedgerStore(path)
    assert str(path) in refused.value.message


def test_damage_found_later_is_reported_without_hanging(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def fill() -> None:
        store = SqliteLedgerStore(path)
        await asyncio.gather(*(store.put(turn(f"e{number}" * 20)) for number in range(300)))
        await store.close()

    async def read() -> None:
        store = SqliteLedgerStore(path)
        with pytest.raises(StoreError, match=r"ledger\.db failed"):
            await asyncio.gather(*(store.get("t", f"e{number}" * 20) for number in range(300)))
        await store.close()

    asyncio.run(fill())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (size - 8192))
    asyncio.run(read())


def test_a_failing_write_does_not_affect_others(tmp_path: Path) -> None:
    async def main() -> list[BaseException | None]:
        store = SqliteLedgerStore(tmp_path / "ledger.db")
        entries: list[LedgerEntry] = [turn("good1"), turn("\ud800"), turn("good2")]
        results = await asyncio.gather(*map(store.put, entries), return_exceptions=True)
        assert await store.get("t", "good1") is not None
        assert await store.get("t", "good2") is not None
        await store.close()
        return results

    first, bad, last = asyncio.run(main())
    assert first is None
    assert last is None
    assert isinstance(bad, StoreError)


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    async def write() -> None:
        store = SqliteLedgerStore(tmp_path / "new" / "turns.sqlite")
        await store.put(turn("a"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
        await store.close()
        assert set(modes.values()) == {0o600}, modes

    asyncio.run(write())
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
