"""A small file next to a store that holds the time of its last gap: a write that was lost.

It is created in advance and overwritten in place, so that a gap can be recorded on a full disk.
After the time and the identity of the store, it lists the gaps of single processes, which these
withdraw when they have written what was missing. The gap of a process that crashes stays.
"""

import fcntl
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IDENTITY_BYTES = 8

_FORMAT = struct.Struct(f"<d{IDENTITY_BYTES}s")
_OWNER_BYTES = 8
_OWNER_FORMAT = struct.Struct(f"<d{_OWNER_BYTES}s")
_MAX_OWNERS = 64  # the file stays smaller than a block
_NO_OWNER = bytes(_OWNER_BYTES)

_Gaps = dict[bytes, float]  # owner -> time; gaps of no owner are never withdrawn


class GapFile:
    """The time of the last gap, shared by all processes that use the store.

    `NO_GAP` means that nothing was lost. If the file cannot be opened, nothing is known, and the
    gap counts as permanent.
    """

    NO_GAP = 0.0

    __slots__ = ("_file", "_own_gap", "_owner", "_store_gap")

    def __init__(self, path: Path) -> None:
        # Recorded by this process, in case the file is not writable.
        self._own_gap = self._store_gap = self.NO_GAP
        self._owner = secrets.token_bytes(_OWNER_BYTES)
        self._file: int | None = None
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def read(self) -> float:
        """Return the time of the last gap."""
        return max(self._own_gap, self._store_gap, self._read()[0])

    @property
    def identity(self) -> bytes:
        """The identity of the store that the file is bound to; zeros if it is bound to none."""
        return self._read()[1]

    def record(self, now: float) -> None:
        """Record a gap of this process at `now`."""
        self._own_gap = max(self._own_gap, now)
        with self._locked():
            gaps = self._read_gaps()
            is_full = len(gaps.keys() | {_NO_OWNER, self._owner}) > _MAX_OWNERS
            owner = _NO_OWNER if is_full else self._owner
            self._write(self._read()[1], {**gaps, owner: max(gaps.get(owner, 0.0), now)})

    def withdraw(self) -> None:
        """Withdraw the gap of this process: what was missing has been written."""
        self._own_gap = self.NO_GAP
        with self._locked():
            gaps = self._read_gaps()
            gaps.pop(self._owner, None)
            self._write(self._read()[1], gaps)

    def clear(self) -> None:
        """Withdraw all gaps."""
        self._own_gap = self._store_gap = self.NO_GAP
        with self._locked():
            self._write(self._read()[1], {})

    def bind(self, identity: bytes, *, is_new: bool, now: float) -> bool:
        """Bind the file to a store. Returns whether it was bound to another, which is a gap.

        `is_new`: nothing was ever written to the store. A store that was in use without this file
        may have lost writes, too.
        """
        with self._locked():
            _, known = self._read()
            if known == identity:
                return False
            gaps = self._read_gaps()
            is_gap = not is_new or known != bytes(IDENTITY_BYTES)
            if is_gap:
                gaps[_NO_OWNER] = self._store_gap = now
            self._write(identity, gaps)
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

    def _read_gaps(self) -> _Gaps:
        """Return the gaps by owner. Versions that recorded no owners wrote the time alone."""
        gap, _ = self._read()
        gaps: _Gaps = {}
        with suppress(OSError):
            if self._file is not None:
                content = os.pread(self._file, _OWNER_FORMAT.size * _MAX_OWNERS, _FORMAT.size)
                listed = len(content) // _OWNER_FORMAT.size * _OWNER_FORMAT.size
                rows = _OWNER_FORMAT.iter_unpack(content[:listed])
                gaps = {owner: time for time, owner in rows if time != self.NO_GAP}
        if gap > max(gaps.values(), default=self.NO_GAP):
            gaps[_NO_OWNER] = gap
        return gaps

    def _write(self, identity: bytes, gaps: _Gaps) -> None:
        """Write the file completely, so that it is allocated in advance."""
        rows = b"".join(_OWNER_FORMAT.pack(time, owner) for owner, time in gaps.items())
        content = _FORMAT.pack(max(gaps.values(), default=self.NO_GAP), identity)
        content += rows.ljust(_OWNER_FORMAT.size * _MAX_OWNERS, b"\0")
        if self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, content, 0)

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
