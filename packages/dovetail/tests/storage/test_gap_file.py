"""The gap file: each process withdraws only its own gap."""

import struct
from pathlib import Path

from dovetail.storage import gap_file
from dovetail.storage.gap_file import GapFile

IDENTITY = b"identity"


def _open(folder: Path) -> GapFile:
    file = GapFile(folder / "gap")
    file.bind(IDENTITY, is_new=True, now=0.0)
    return file


def test_gap_of_a_process_is_withdrawn_for_all(tmp_path: Path) -> None:
    one, other = _open(tmp_path), _open(tmp_path)
    one.record(5.0)
    assert one.read() == other.read() == 5.0
    other.withdraw()  # it has none
    assert one.read() == other.read() == 5.0
    one.withdraw()
    assert one.read() == other.read() == GapFile.NO_GAP
    assert one.identity == IDENTITY


def test_gap_of_a_crashed_process_stays(tmp_path: Path) -> None:
    crashed = _open(tmp_path)
    crashed.record(5.0)
    crashed.close()
    one = _open(tmp_path)
    one.record(7.0)
    one.withdraw()
    assert one.read() == 5.0
    one.clear()
    assert one.read() == GapFile.NO_GAP


def test_replaced_store_stays_a_gap(tmp_path: Path) -> None:
    file = _open(tmp_path)
    assert file.bind(b"replaced", is_new=True, now=3.0)
    file.record(5.0)
    file.withdraw()
    assert file.read() == _open_again(tmp_path).read() == 3.0


def _open_again(folder: Path) -> GapFile:
    return GapFile(folder / "gap")


def test_gap_of_a_version_without_owners_stays(tmp_path: Path) -> None:
    (tmp_path / "gap").write_bytes(struct.pack("<d8s", 4.0, IDENTITY))
    file = _open(tmp_path)
    assert file.read() == 4.0
    file.record(5.0)
    file.withdraw()
    assert file.read() == 4.0


def test_gaps_of_too_many_processes_stay(tmp_path: Path) -> None:
    files = [_open(tmp_path) for _ in range(gap_file._MAX_OWNERS + 3)]
    for time, file in enumerate(files, start=1):
        file.record(float(time))
    for file in files:
        file.withdraw()
    assert _open_again(tmp_path).read() == len(files)


def test_recording_a_gap_does_not_enlarge_the_file(tmp_path: Path) -> None:
    """A full disk has no room for more."""
    file = _open(tmp_path)
    size = (tmp_path / "gap").stat().st_size
    file.record(5.0)
    assert (tmp_path / "gap").stat().st_size == size
