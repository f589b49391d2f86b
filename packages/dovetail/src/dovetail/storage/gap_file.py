"""A small file next to a store that holds the time of its last gap: a write that was lost.

It is created in advance and overwritten in place, so that a gap can be recorded on a full disk.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IDENTITY_BYTES = 8

_FORMAT = struct.Struct(f"<d{IDENTITY_BYTES}s")


class GapFile:
    """The time of the last gap, shared by all processes that use the store.

    `NO_GAP` means that nothing was lost. If the file cannot be opened, nothing is known, and the
    gap counts as permanent.
    """

    NO_GAP = 0.0

    __slots__ = ("_file", "_own_gap")

    def __init__(self, path: Path) -> None:
        self._own_gap = self.NO_GAP  # recorded by this process, in case the file is not writable
        self._file: int | None = None
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def read(self) -> float:
        """Return the time of the last gap."""
        return max(self._own_gap, self._read()[0])

    @property
    def identity(self) -> bytes:
        """The identity of the store that the file is bound to; zeros if it is bound to none."""
        return self._read()[1]

    def record(self, now: float) -> None:
        """Record a gap at `now`."""
        self._own_gap = max(self._own_gap, now)
        with self._locked():
            gap, identity = self._read()
            self._write(max(gap, now), identity)

    def clear(self) -> None:
        """Withdraw the gap: what was missing has been written."""
        self._own_gap = self.NO_GAP
        with self._locked():
            _, identity = self._read()
            self._write(self.NO_GAP, identity)

    def bind(self, identity: bytes, *, is_new: bool, now: float) -> bool:
        """Bind the file to a store. Returns whether it was bound to another, which is a gap.

        `is_new`: nothing was ever written to the store. A store that was in use without this file
        may have lost writes, too.
        """
        with self._locked():
            gap, known = self._read()
            if known == identity:
                return False
            is_gap = not is_new or known != bytes(IDENTITY_BYTES)
            if is_gap:
                self._own_gap = now
            self._write(now if is_gap else gap, identity)
            return is_gap

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> tuple[float, bytes]:
        if self._file is None:
            return float("inf"), b""
        try:
            content = os.pread(self._file, _FORMAT.size, 0)
        except OSError:
            return float("inf"), b""
        if len(content) < _FORMAT.size:
            return self.NO_GAP, bytes(IDENTITY_BYTES)
        gap, identity = _FORMAT.unpack(content)
        return gap, identity

    def _write(self, gap: float, identity: bytes) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, _FORMAT.pack(gap, identity), 0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other processes, whose gap must not be overwritten by an older one."""
        if self._file is None:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
