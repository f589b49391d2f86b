"""Upgrade of ledgers: a file of version 1 that the code of that version wrote.

The recording was made with the code of that version: three turns of tenant `t`, last used at 1e9.
"""

import asyncio
import gzip
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ledger_entries import turn

from dovetail.ledger.entry import LedgerEntry, pack_ids
from dovetail.ledger.export import LedgerExporter
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.sqlite_schema import SCHEMA_VERSION
from dovetail.ledger.sqlite_store import SqliteLedgerStore

RECORDED = Path(__file__).parents[1] / "support" / "recordings" / "ledger_version_1.sqlite.gz"
THEN = 1e9  # when the turns were last used
PROCESSES = 6


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "turns.sqlite"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1,)
    return path


def _store(path: Path) -> SqliteLedgerStore:
    return SqliteLedgerStore(path, clock=lambda: THEN + 1)


def test_all_entries_of_an_old_file_are_found(old: Path) -> None:
    async def main() -> tuple[list[LedgerEntry | None], tuple[str, ...], tuple[str, ...]]:
        store = _store(old)
        entries = [await store.get("t", f"old{n}") for n in range(3)]
        found = (
            await store.find_by_call("t", "call1"),
            (await store.find_by_chain("t", b"chain2", b"before")).ids,
        )
        await store.close()
        return entries, *found

    entries, by_call, by_chain = asyncio.run(main())
    assert [entry.created for entry in entries if entry] == [THEN, THEN + 1, THEN + 2]
    assert [(e.session, e.agent, e.response_number, e.logprobs) for e in entries if e] == [
        ("",) * 3 + (b"",)
    ] * 3
    assert (by_call, by_chain) == (("old1",), ("old2",))
    with closing(sqlite3.connect(old)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_an_old_file_accepts_new_turns_and_evicts_old_ones(old: Path) -> None:
    async def main() -> None:
        store = _store(old)
        await store.put(turn("new", session="s"))
        assert await store.find_by_session("t", "s") == ("new",)
        assert [one.session for one in await store.list_sessions("t")] == ["s"]
        assert (await store.stats()).entries == 4
        await store.close()
        later = SqliteLedgerStore(old, max_age=10.0, clock=lambda: THEN + 100)
        await later.put(turn("newer", session="s"))
        assert await later.find_by_session("t", "s") == ("newer",)
        assert (await later.stats()).entries == 1
        await later.close()

    asyncio.run(main())
    with closing(sqlite3.connect(old)) as file:
        assert file.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []


def test_old_and_new_files_have_the_same_tables(old: Path, tmp_path: Path) -> None:
    def tables(path: Path) -> set[tuple[str, str]]:
        asyncio.run(_store(path).close())
        with closing(sqlite3.connect(path)) as file:
            return set(file.execute("SELECT name, sql FROM sqlite_master").fetchall())

    assert tables(old) == tables(tmp_path / "new.sqlite")


_OPEN = """
import asyncio, sys
from pathlib import Path
from ledger_entries import turn
from dovetail.ledger.sqlite_store import SqliteLedgerStore

async def main(path, name):
    print("ready", flush=True)
    sys.stdin.readline()
    store = SqliteLedgerStore(Path(path), clock=lambda: 1e9 + 1)
    assert await store.get("t", "old1") is not None
    for number in range(20):
        await store.put(turn(f"{name}-{number}", session=name))
    assert len(await store.find_by_session("t", name)) == 20
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_many_processes_can_open_an_old_file_at_once(old: Path) -> None:
    with closing(sqlite3.connect(old)) as reader:  # a reader that opened the file earlier
        reader.execute("SELECT count(*) FROM entries").fetchone()
        started = [
            subprocess.Popen(
                [sys.executable, "-c", _OPEN, str(old), f"p{number}"],
                cwd=Path(__file__).parents[1] / "support",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(PROCESSES)
        ]
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in started:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in started:
            one.communicate(timeout=60)
        assert [one.returncode for one in started] == [0] * PROCESSES
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (3 + 20 * PROCESSES,)
        assert reader.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_session_that_began_before_the_upgrade_is_exported_completely(old: Path) -> None:
    """Old turns have no session: they are exported with the session that continues them."""

    async def main() -> list[object]:
        ledger = Ledger(_store(old))
        parent = await ledger.get("t", "old2")
        assert parent is not None
        whole = await ledger.load_token_ids(parent)
        assert whole is not None
        grown = turn(
            "new",
            parent="old2",
            prefix_tokens=len(whole),
            suffix=pack_ids([2, 7]),
            generated=pack_ids([8, 9]),
            session="s",
        )
        await ledger.record(grown, whole[:])
        export = LedgerExporter(ledger, "t")
        made: list[object] = [one async for one in export.iter_samples(await export.find("s"))]
        await ledger.close()
        return made

    (sample,) = asyncio.run(main())
    assert isinstance(sample, TrainingSample)
    assert [one.entry for one in sample.turns] == ["old0", "old1", "old2", "new"]
    assert sample.session == "s"
    assert sample.ids[-5:] == [2, 7, 8, 9, 2]
    assert sample.loss_mask[-5:] == [1, 0, 1, 1, 1]
