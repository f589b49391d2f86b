"""A trace file: lines are added at its end, and when it is large it is put away, compressed.

A file that was put away is named by the moment it was, `trace.jsonl.20261115T084103.120000Z.gz`.
All of them can be read by their owner alone.
"""

import fcntl
import gzip
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

_FILE_MODE = 0o600
_TIMESTAMP_PATTERN = r"\d{8}T\d{6}\.\d{6}Z"
_MAX_WRITERS = 256  # processes that may be at work on one name


class TraceFile:
    """One file that one process writes. Where another one does, a name beside it is taken.

    `max_bytes` of 0: it is never put away. Raises `OSError` where it cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int, max_rotated_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_rotated_files = max_rotated_files
        self.path, self._lock = _claim_path(path)
        self._line_truncated = False  # whether the last line was cut
        self._file = -1
        try:
            self._open()
            self._compress_and_prune()
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, line: bytes) -> None:
        """Adds a line. Raises `OSError` where it cannot; the next one is whole again."""
        if self._is_regular_file and 0 < self._max_bytes < self._size + len(line) and self._size:
            self._rotate()
        data = b"\n" + line if self._line_truncated else line
        self._line_truncated = True
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]
        self._line_truncated = False

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _open(self) -> None:
        """Where it fails, the file that was open before still is."""
        how = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        opened = os.open(self.path, how, _FILE_MODE)
        if self._file >= 0:
            os.close(self._file)
        self._file = opened
        found = os.fstat(self._file)
        self._is_regular_file = stat.S_ISREG(found.st_mode)
        self._size = found.st_size
        if self._is_regular_file:
            os.fchmod(self._file, _FILE_MODE)
            self._line_truncated = (
                self._size > 0 and os.pread(self._file, 1, self._size - 1) != b"\n"
            )

    def _rotate(self) -> None:
        """The file gets its moment's name and a new one is begun; then the old is compressed."""
        with suppress(FileNotFoundError):  # somebody has taken it away, or a new one did not open
            os.rename(self.path, self.path.with_name(f"{self.path.name}.{_timestamp()}"))
        self._open()
        self._compress_and_prune()

    def _compress_and_prune(self) -> None:
        """Compresses what was put away, also what a crash left so, and drops what is too old."""
        put_away = re.compile(rf"{re.escape(self.path.name)}\.{_TIMESTAMP_PATTERN}(\.gz)?")
        names = (entry.name for entry in os.scandir(self.path.parent))
        found = sorted(name for name in names if put_away.fullmatch(name))
        kept = found[-self._max_rotated_files :] if self._max_rotated_files > 0 else []
        for name in found:
            whole = self.path.with_name(name)
            if name not in kept:
                whole.unlink(missing_ok=True)
            elif not name.endswith(".gz"):
                _compress(whole)


def _timestamp() -> str:
    now = time.time_ns()
    seconds = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9 // 1000:06d}Z"


def _compress(path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    with (
        path.open("rb") as source,
        os.fdopen(descriptor, "wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
    part.rename(path.with_name(f"{path.name}.gz"))
    path.unlink(missing_ok=True)


def _claim_path(path: Path) -> tuple[Path, int]:
    """The first name that no other process writes to, and the lock that says so."""
    for number in count(1):
        own = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        lock = os.open(
            own.with_name(f".{own.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE
        )
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return own, lock
        os.close(lock)
        if number == _MAX_WRITERS:
            break
    raise OSError(f"{path}: {_MAX_WRITERS} processes write to this trace")
