"""A ledger that is deleted, or replaced by a backup, counts as a gap."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_entries import turn

from dovetail.ledger.keyring import load_or_create_keyring
from dovetail.ledger.sqlite_store import POSITION_FILE, SqliteLedgerStore
from dovetail.ledger.store import OpenTurn

LEDGER = "turns.sqlite"


def _use(folder: Path, *ids: str, announce_only: bool = False) -> bool:
    """Start a process that generates turns and stops. Returns whether it began with a gap."""

    async def main() -> bool:
        store = SqliteLedgerStore(folder / LEDGER)
        has_gap = store.gap_at > 0
        for id in ids:
            await store.open_turn(OpenTurn("t", id, b"before"))
            if not announce_only:
                await store.put(turn(id))
        await store.close()
        return has_gap

    return asyncio.run(main())


def _delete(folder: Path) -> None:
    for file in folder.glob(f"{LEDGER}*"):
        file.unlink()


def _restore(backup: Path, folder: Path) -> None:
    for suffix in ("-wal", "-shm"):
        (folder / f"{LEDGER}{suffix}").unlink(missing_ok=True)
    shutil.copy(backup, folder / LEDGER)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """The ledger after one turn."""
    _use(tmp_path, "first")
    return Path(shutil.copy(tmp_path / LEDGER, tmp_path / "backup"))


def test_restarts_are_no_gap(tmp_path: Path) -> None:
    for ids in ((), ("first",), (), ("second",), ()):
        assert not _use(tmp_path, *ids)
        load_or_create_keyring(tmp_path)


def test_backup_of_the_current_state_is_no_gap(tmp_path: Path, backup: Path) -> None:
    _restore(backup, tmp_path)
    assert not _use(tmp_path)


@pytest.mark.parametrize("announce_only", [True, False])
def test_older_backup_is_a_gap(tmp_path: Path, backup: Path, announce_only: bool) -> None:
    assert not _use(tmp_path, "second", announce_only=announce_only)
    _restore(backup, tmp_path)
    assert _use(tmp_path)
    assert _use(tmp_path)  # it lasts


def test_ledger_that_returns_after_its_backup_was_used_is_a_gap(
    tmp_path: Path, backup: Path
) -> None:
    _use(tmp_path, "second", "third", "fourth")
    newer = Path(shutil.copy(tmp_path / LEDGER, tmp_path / "newer"))
    _restore(backup, tmp_path)
    _use(tmp_path, "fifth")
    (tmp_path / f"{LEDGER}.gap").unlink()
    _restore(newer, tmp_path)
    assert _use(tmp_path)


def test_deleted_ledger_is_a_gap(tmp_path: Path, backup: Path) -> None:
    _delete(tmp_path)
    assert _use(tmp_path)
    assert _use(tmp_path)


def test_missing_ledger_next_to_a_seal_key_is_a_gap(tmp_path: Path) -> None:
    """An earlier version was used in this folder."""
    load_or_create_keyring(tmp_path)
    assert _use(tmp_path)


def test_deleted_position_file_is_a_gap(tmp_path: Path, backup: Path) -> None:
    (tmp_path / POSITION_FILE).unlink()
    assert _use(tmp_path)


def _run_and_replace(folder: Path, replace: Callable[[], object]) -> tuple[bool, bool]:
    """Let a process use the ledger while it is replaced. Returns its gap, and that of the next."""

    async def main() -> bool:
        store = SqliteLedgerStore(folder / LEDGER)
        await store.put(turn("second"))
        replace()
        await store.get("t", "second")
        has_gap = store.gap_at > 0
        await store.close()
        return has_gap

    return asyncio.run(main()), _use(folder)


def test_backup_that_replaces_the_ledger_of_a_running_process_is_a_gap(
    tmp_path: Path, backup: Path
) -> None:
    replaced = _run_and_replace(tmp_path, lambda: backup.rename(tmp_path / LEDGER))
    assert replaced == (True, True)


def test_ledger_that_a_running_process_loses_with_its_gap_file_is_a_gap(
    tmp_path: Path, backup: Path
) -> None:
    assert _run_and_replace(tmp_path, lambda: _delete(tmp_path)) == (True, True)


def test_backup_of_a_running_process_that_is_killed_is_a_gap(tmp_path: Path, backup: Path) -> None:
    killed = tmp_path / "killed"

    async def main() -> None:
        store = SqliteLedgerStore(tmp_path / LEDGER)
        await store.open_turn(OpenTurn("t", "second", b"before"))
        shutil.copytree(tmp_path, killed)  # what a process leaves that ends here
        await store.close()

    asyncio.run(main())
    _restore(backup, killed)
    assert _use(killed)


def test_crash_between_a_commit_and_the_position_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteLedgerStore, "_save_position", lambda store: None)
        _use(tmp_path, "first")
    assert not _use(tmp_path)


def test_processes_that_share_a_ledger_have_no_gap(tmp_path: Path) -> None:
    async def main() -> None:
        stores = [SqliteLedgerStore(tmp_path / LEDGER) for _ in range(3)]
        puts = [store.put(turn(f"{at}-{n}")) for at, store in enumerate(stores) for n in range(20)]
        await asyncio.gather(*puts)
        late = SqliteLedgerStore(tmp_path / LEDGER)
        assert late.gap_at == 0
        for store in (*stores, late):
            await store.close()

    asyncio.run(main())
    assert not _use(tmp_path)
