"""The position file: commits of several processes, and of another store."""

from pathlib import Path

from dovetail.storage.position_file import PositionFile, StorePosition


def test_position_only_advances(tmp_path: Path) -> None:
    one, other = (PositionFile(tmp_path / "position") for _ in range(2))
    assert one.read() is None
    one.write(StorePosition(b"identity", 3))
    other.advance(StorePosition(b"identity", 5))
    one.advance(StorePosition(b"identity", 4))
    assert one.read() == other.read() == StorePosition(b"identity", 5)


def test_commit_to_another_store_does_not_change_the_position(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "position")
    file.advance(StorePosition(b"identity", 1))
    assert file.read() is None
    file.write(StorePosition(b"identity", 1))
    file.advance(StorePosition(b"replaced", 7))
    assert file.read() == StorePosition(b"identity", 1)


def test_file_that_cannot_be_opened_has_no_position(tmp_path: Path) -> None:
    file = PositionFile(tmp_path)
    file.write(StorePosition(b"identity", 1))
    file.advance(StorePosition(b"identity", 2))
    assert file.read() is None
    file.close()
