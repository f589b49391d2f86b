"""A small file that holds the position of a store: its identity and the number of its commits.

A store with another identity or fewer commits was deleted, or replaced by a backup. The file is
overwritten in place after each commit. This takes some microseconds and survives a crash of the
process; after a crash of the machine it may also show that the last commits of the store are lost.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dovetail.storage.gap_file import IDENTITY_BYTES

_FORMAT = struct.Struct(f"<{IDENTITY_BYTES}sQ")


class StorePosition(NamedTuple):
    """The identity of a store, and the number of its transactions that wrote."""

    identity: bytes
    commits: int


class PositionFile:
    """The last known position of a store, shared by all processes that use it.

    A file that cannot be opened or written is like a missing one.
    """

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def read(self) -> StorePosition | None:
        """Return the position, or None if the file is new."""
        content = b""
        with suppress(OSError):
            if self._file is not None:
                content = os.pread(self._file, _FORMAT.size, 0)
        return StorePosition(*_FORMAT.unpack(content)) if len(content) == _FORMAT.size else None

    def write(self, position: StorePosition) -> None:
        """Write the position. The caller holds the lock."""
        with suppress(OSError):
            if self._file is not None:
                os.pwrite(self._file, _FORMAT.pack(*position), 0)

    def advance(self, position: StorePosition) -> None:
        """Write the position after a commit, unless a later commit or another store is known."""
        with self.locked():
            known = self.read()
            if known is not None and known.identity == position.identity:
                self.write(max(known, position))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes, unless the file system has no locks."""
        with suppress(OSError):
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                if self._file is not None:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
