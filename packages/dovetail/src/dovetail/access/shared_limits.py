"""Rate limit states shared by the worker processes of one server, in a memory-mapped file.

The file is a hash table with open addressing: a header, then slots of equal size. Each slot has one
count of running requests per worker, so that a restarted worker can reset the counts that its
crashed predecessor left behind.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dovetail.access.limits import is_idle

DEFAULT_SLOTS = 1 << 14
_MAGIC = b"dovetlm1"
_HEADER = struct.Struct("=8sII48x")  # magic, number of slots, number of workers
_SLOT = struct.Struct("=32sdd")  # key, then when the requests and tokens allowances are full again
_COUNT = struct.Struct("=q")
_TIME = struct.Struct("=d")
_REQUESTS_AT, _TOKENS_AT = 32, 40
_EMPTY_KEY = bytes(32)
_MAX_PROBES = 64
_LOCK_TIMEOUT_SECONDS = 0.1
_LOCK_RETRY_SECONDS = 0.0002


class SharedLimitStoreError(OSError):
    """A file that is not a rate limit store, or has no counts for this worker."""


def create_shared_limit_store(path: Path, workers: int, slots: int = DEFAULT_SLOTS) -> None:
    """Create an empty store that only this user can access. An existing file is replaced."""
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    file = os.open(path, flags, 0o600)
    try:
        os.ftruncate(file, _HEADER.size + slots * _slot_size(workers))
        os.pwrite(file, _HEADER.pack(_MAGIC, slots, workers), 0)
    finally:
        os.close(file)


class SharedLimitStore:
    """The states of all keys, as used by worker number `worker`."""

    __slots__ = ("_file", "_map", "_slot_size", "_slots", "_worker", "_workers")

    def __init__(self, path: Path, worker: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            head = os.pread(self._file, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
            magic, self._slots, self._workers = _HEADER.unpack(head)
            if magic != _MAGIC or not 0 <= worker < self._workers:
                raise SharedLimitStoreError(f"{path} is not a rate limit store for worker {worker}")
            self._map = mmap.mmap(self._file, 0)
        except BaseException:
            os.close(self._file)
            raise
        self._worker = worker
        self._slot_size = _slot_size(self._workers)
        self._reset_worker_counts()

    def close(self) -> None:
        self._map.close()
        os.close(self._file)

    @contextmanager
    def lock(self, key: bytes) -> Iterator["SharedLimitState"]:
        with self._locked():
            yield self._find_state(key)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, or continue without it after a timeout if another process holds it.

        An inaccurate count is better than a server that hangs.
        """
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        held = self._try_lock()
        while not held and time.monotonic() < deadline:
            time.sleep(_LOCK_RETRY_SECONDS)
            held = self._try_lock()
        try:
            yield
        finally:
            if held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _find_state(self, key: bytes) -> "SharedLimitState":
        """Find the slot of a key, or assign it one. Used slots never become empty again."""
        first = int.from_bytes(key[:8], "big")
        now, free = time.monotonic(), -1
        for probe in range(_MAX_PROBES):
            at = self._slot_offset((first + probe) % self._slots)
            owner = self._map[at : at + 32]
            if owner == key:
                return self._state_at(at)
            if free < 0 and (owner == _EMPTY_KEY or is_idle(self._state_at(at), now)):
                free = at
            if owner == _EMPTY_KEY:
                break
        if free < 0:
            free = self._slot_offset(first % self._slots)  # all probed slots are in use: evict one
        self._map[free : free + self._slot_size] = key.ljust(self._slot_size, b"\0")
        return self._state_at(free)

    def _state_at(self, at: int) -> "SharedLimitState":
        return SharedLimitState(self._map, at, self._worker, self._workers)

    def _slot_offset(self, number: int) -> int:
        return _HEADER.size + number * self._slot_size

    def _reset_worker_counts(self) -> None:
        count_offset = _SLOT.size + self._worker * _COUNT.size
        with self._locked():
            for number in range(self._slots):
                at = self._slot_offset(number) + count_offset
                if _COUNT.unpack_from(self._map, at)[0]:
                    _COUNT.pack_into(self._map, at, 0)


class SharedLimitState:
    """The state of a key, in a slot of the file."""

    __slots__ = ("_at", "_map", "_worker", "_workers")

    def __init__(self, mapped: mmap.mmap, at: int, worker: int, workers: int) -> None:
        self._map = mapped
        self._at = at
        self._worker = worker
        self._workers = workers

    @property
    def requests(self) -> float:
        return self._time(_REQUESTS_AT)

    @requests.setter
    def requests(self, value: float) -> None:
        _TIME.pack_into(self._map, self._at + _REQUESTS_AT, value)

    @property
    def tokens(self) -> float:
        return self._time(_TOKENS_AT)

    @tokens.setter
    def tokens(self, value: float) -> None:
        _TIME.pack_into(self._map, self._at + _TOKENS_AT, value)

    @property
    def in_flight(self) -> int:
        counts = struct.unpack_from(f"={self._workers}q", self._map, self._at + _SLOT.size)
        return sum(counts)

    def add_in_flight(self, by: int) -> None:
        """Change the count, but not below 0: the slot may belong to another key by now."""
        at = self._at + _SLOT.size + self._worker * _COUNT.size
        count: int = _COUNT.unpack_from(self._map, at)[0]
        _COUNT.pack_into(self._map, at, max(0, count + by))

    def _time(self, offset: int) -> float:
        value: float = _TIME.unpack_from(self._map, self._at + offset)[0]
        return value


def _slot_size(workers: int) -> int:
    return _SLOT.size + workers * _COUNT.size
