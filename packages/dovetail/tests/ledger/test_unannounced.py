"""Turns that could not be announced are announced when the store is back."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from ledger_entries import turn

from dovetail.ledger import sqlite_store, unannounced
from dovetail.ledger.entry import FINISH_INTERRUPTED
from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.ledger.store import OpenTurn, TurnMark
from dovetail.storage.faults import StoreError

FIRST = OpenTurn("t", "first", b"before", "s")
MARK = TurnMark("first", "s")


class FailingStore(SqliteLedgerStore):
    """A store whose announcements can fail, as on a full disk."""

    __slots__ = ("fails",)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fails = False

    def _open_turn(self, turn: OpenTurn) -> None:
        if self.fails:
            raise sqlite3.OperationalError("database or disk is full")
        super()._open_turn(turn)

    async def fail_to_announce(self) -> None:
        self.fails = True
        with pytest.raises(StoreError):
            await self.open_turn(FIRST)
        await self.record_gap(FIRST, "full")


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "_RETRY_INTERVAL_SECONDS", 0.02)


def _run(folder: Path, body: Callable[[FailingStore, SqliteLedgerStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store, other = FailingStore(folder / "t.sqlite"), SqliteLedgerStore(folder / "t.sqlite")
        try:
            await body(store, other)
        finally:
            await store.close()
            await other.close()

    asyncio.run(main())


async def _wait_exhaustive(store: SqliteLedgerStore) -> tuple[TurnMark, ...]:
    async with asyncio.timeout(30):
        while True:
            found = await store.find_by_chain("t", b"chain", b"before")
            if found.exhaustive:
                return found.marks
            await asyncio.sleep(0.01)


def test_gap_ends_when_its_turns_are_announced(tmp_path: Path) -> None:
    async def body(store: FailingStore, other: SqliteLedgerStore) -> None:
        await store.fail_to_announce()
        await asyncio.sleep(0.1)
        for each in (store, other):
            assert not (await each.find_by_chain("t", b"chain", b"before")).exhaustive
        store.fails = False
        assert await _wait_exhaustive(other) == (MARK,)
        assert await _wait_exhaustive(store) == (MARK,)
        assert store.gap_at == other.gap_at == 0.0

    _run(tmp_path, body)


def test_stored_turn_is_not_announced(tmp_path: Path) -> None:
    async def body(store: FailingStore, other: SqliteLedgerStore) -> None:
        await store.fail_to_announce()
        await store.put(turn("first"))
        assert await _wait_exhaustive(other) == ()

    _run(tmp_path, body)


def test_interrupted_turn_is_announced_although_it_is_stored(tmp_path: Path) -> None:
    async def body(store: FailingStore, other: SqliteLedgerStore) -> None:
        await store.fail_to_announce()
        await store.put(turn("first", finish=FINISH_INTERRUPTED))
        store.fails = False
        assert await _wait_exhaustive(other) == (MARK,)

    _run(tmp_path, body)


def test_gap_stays_if_a_turn_will_never_be_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unannounced, "_MAX_TURNS", 1)

    async def body(store: FailingStore, other: SqliteLedgerStore) -> None:
        await store.fail_to_announce()
        await store.record_gap(OpenTurn("t", "second", b"before"), "full")
        store.fails = False
        await asyncio.sleep(0.2)
        found = await other.find_by_chain("t", b"chain", b"before")
        assert [mark.id for mark in found.marks] == ["second"]
        assert not found.exhaustive

    _run(tmp_path, body)


def test_gap_of_a_crashed_process_stays(tmp_path: Path) -> None:
    async def body(store: FailingStore, other: SqliteLedgerStore) -> None:
        await store.fail_to_announce()
        assert store._retry_task is not None
        store._retry_task.cancel()
        await asyncio.sleep(0.1)
        assert not (await other.find_by_chain("t", b"chain", b"before")).exhaustive

    _run(tmp_path, body)
