"""The open files of this process, shared between clients, engines and everything else.

Each running request needs a connection of its client and one to its engine. If clients could use
all files, requests would be admitted that cannot reach their engine.
"""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from dovetail_model import Overloaded

MAX_OPEN_FILES = 65536  # requested from the operating system, if permitted
RESERVED_FILES = 64  # file descriptors reserved for stores, logs and health checks
MAX_ENGINE_FILES = 4096  # file descriptors for connections to engines, at most half of all
_SHORTAGE_SECONDS = 10.0
_SHORTAGE_ERRORS = (errno.EMFILE, errno.ENFILE)


class FileShortage(Overloaded):
    """This process has no free file descriptor. The engine is not at fault."""

    reason = "open_files"


def raise_file_limit() -> None:
    """Raise the limit of open files if permitted: each request needs two, and 1024 are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(OSError, ValueError):  # a sandbox may not allow it
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def max_connections() -> int:
    """Return the maximum number of client connections, derived from the limit of open files."""
    return _available_files() - max_engine_connections()


def max_engine_connections() -> int:
    """Return the maximum number of connections to engines."""
    return min(_available_files() // 2, MAX_ENGINE_FILES)


class EngineConnections:
    """The open connections of this process to engines."""

    count = 0
    _last_shortage = float("-inf")

    def check_capacity(self) -> None:
        """Raise `FileShortage` if no further connection is allowed."""
        if self.count >= max_engine_connections():
            raise self.shortage()

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Count one connection while the block runs."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def shortage(self) -> FileShortage:
        """Record a shortage and return its error."""
        self._last_shortage = monotonic()
        return FileShortage("The server is at its limit of open connections; retry later.")

    @property
    def had_shortage(self) -> bool:
        """Whether there was a shortage recently, so that health checks may have failed."""
        return monotonic() - self._last_shortage < _SHORTAGE_SECONDS


engine_connections = EngineConnections()


def is_file_shortage(error: OSError) -> bool:
    return error.errno in _SHORTAGE_ERRORS


def _available_files() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else max(2, soft - RESERVED_FILES)
