"""Database files that are damaged, deleted or replaced, and clocks that jump."""

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from ledger_entries import turn

from dovetail.ledger.sqlite_store import SqliteLedgerStore
from dovetail.responses.backend import DAY_SECONDS, StoredResponse
from dovetail.responses.sqlite import SqliteResponseBackend
from dovetail.storage.database_file import (
    DamagedFileError,
    loose_permissions_warning,
    move_damaged_file,
    require_undamaged,
)
from dovetail.storage.faults import StoreError
from dovetail.storage.sqlite import ExpiryClock

YEAR_SECONDS = 365 * DAY_SECONDS


def response(id: str) -> StoredResponse:
    return StoredResponse("t", id, 1.0, "completed", b"{}", b"", b"x" * 500)


def remove_files(path: Path, *, log: bool) -> None:
    path.unlink()
    if log:
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.getMessage().startswith("store_file")]


@pytest.mark.parametrize("log", [True, False], ids=["all files", "only the database"])
def test_deleted_ledger_is_created_again(
    tmp_path: Path, log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.db"

    async def main() -> None:
        store, other = SqliteLedgerStore(path), SqliteLedgerStore(path)
        await store.put(turn("e1"))
        assert not store.gap_at
        remove_files(path, log=log)
        await store.put(turn("e2"))
        assert await store.get("t", "e1") is None
        assert await store.get("t", "e2") == turn("e2")
        assert await other.get("t", "e2") == turn("e2"), "all processes use the new file"
        assert store.gap_at, "turns of the deleted file may look like known ones"
        await store.close()
        await other.close()
        again = SqliteLedgerStore(path)
        assert await again.get("t", "e2") == turn("e2")
        await again.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    first, second = ["store_file_deleted", "store_file_reopened"], "store_file_replaced"
    assert events(caplog) == [*first, second, first[1]]
    require_undamaged(path, "ledger")
    assert path.stat().st_mode & 0o777 == 0o600


def test_restored_backup_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "responses.db"

    async def main() -> None:
        backend = SqliteResponseBackend(path)
        await backend.put(response("resp_1"))
        await backend.close()
        shutil.copy(path, tmp_path / "backup")
        backend = SqliteResponseBackend(path)
        await backend.put(response("resp_2"))
        os.replace(tmp_path / "backup", path)
        assert await backend.get("t", "resp_1") == response("resp_1")
        assert await backend.get("t", "resp_2") is None
        await backend.put(response("resp_3"))
        await backend.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert events(caplog) == ["store_file_replaced", "store_file_reopened"]
    require_undamaged(path, "response store")


def test_store_fails_while_the_file_cannot_be_opened_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def main() -> None:
        backend = SqliteResponseBackend(path)
        await backend.put(response("resp_1"))
        path.unlink()
        path.mkdir()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"responses\.db"):
                await backend.put(response("resp_2"))
        assert backend.faults.unavailable
        path.rmdir()
        await backend.put(response("resp_3"))
        assert await backend.get("t", "resp_3") == response("resp_3")
        await backend.close()

    asyncio.run(main())


def write_garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def damage_middle(path: Path) -> None:
    async def fill() -> None:
        store = SqliteLedgerStore(path)
        for number in range(200):
            await store.put(turn(f"e{number}" * 20))
        await store.close()

    asyncio.run(fill())
    data = bytearray(path.read_bytes())
    data[16384 : len(data) - 8192] = bytes(len(data) - 24576)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [write_garbage, damage_middle])
def test_damaged_ledger_is_moved_aside(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "turns.sqlite"
    damage(path)
    content = path.read_bytes()
    moved_to = move_damaged_file(path, "ledger")
    assert moved_to is not None
    assert moved_to.read_bytes() == content
    assert moved_to.name.startswith("turns.sqlite.damaged-")
    (line,) = (one for one in caplog.records if one.getMessage() == "store_file_damaged")
    assert vars(line)["fields"]["moved_to"] == str(moved_to)

    async def use() -> None:
        store = SqliteLedgerStore(path)
        await store.put(turn("e1"))
        await store.close()

    asyncio.run(use())
    assert move_damaged_file(path, "ledger") is None


def test_error_for_damaged_responses_names_file_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    require_undamaged(path, "response store")
    write_garbage(path)
    with pytest.raises(DamagedFileError) as refused:
        require_undamaged(path, "response store")
    for part in (str(path), "is damaged", "backup", "move it"):
        assert part in str(refused.value)
    assert path.exists()


def test_loose_permissions_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert loose_permissions_warning(folder) is None
    folder.mkdir(mode=0o700)
    assert loose_permissions_warning(folder) is None
    folder.chmod(0o750)
    assert "0750" in str(loose_permissions_warning(folder))
    assert f"chmod 700 {folder}" in str(loose_permissions_warning(folder))


class Clocks:
    """The system's clock and the elapsed time, which tests set."""

    def __init__(self) -> None:
        self.wall, self.elapsed = 1_800_000_000.0, 50.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


def test_expiry_clock_ignores_forward_jumps_only() -> None:
    clocks = Clocks()
    clock = ExpiryClock(lambda: clocks.wall, lambda: clocks.elapsed)
    start = clock()
    clocks.wait(DAY_SECONDS)
    assert clock() == start + DAY_SECONDS
    clocks.wall += YEAR_SECONDS
    assert clock() == start + DAY_SECONDS
    clocks.wait(DAY_SECONDS)
    assert clock() == start + 2 * DAY_SECONDS
    clocks.wall -= YEAR_SECONDS + 10.0
    assert clock() == start + 2 * DAY_SECONDS - 10.0


@pytest.mark.parametrize("kind", ["responses", "ledger"])
def test_forward_jump_expires_nothing(tmp_path: Path, kind: str) -> None:
    clocks = Clocks()

    async def main() -> None:
        path, clock = tmp_path / "db", lambda: clocks.wall
        expiry = ExpiryClock(clock, lambda: clocks.elapsed)
        put: Callable[[str], Awaitable[None]]
        if kind == "ledger":
            store = SqliteLedgerStore(path, clock=clock, expiry_clock=expiry)
            put = lambda id: store.put(turn(id))  # noqa: E731
        else:
            store = SqliteResponseBackend(path, clock=clock, expiry_clock=expiry)  # type: ignore[assignment]
            put = lambda id: store.put(response(id))  # type: ignore[arg-type]  # noqa: E731
        await put("a1")
        clocks.wall += YEAR_SECONDS
        await put("a2")  # a write deletes expired rows
        assert await store.get("t", "a1") is not None
        assert await store.get("t", "a2") is not None
        clocks.wall -= YEAR_SECONDS
        clocks.wait(40 * DAY_SECONDS)
        await put("a3")
        assert await store.get("t", "a1") is None, "its age is over"
        await store.close()

    asyncio.run(main())
