"""Detect changes of a file without reading it."""

import os
import time
from pathlib import Path

#: Identifies a version of a file; None if the file cannot be read.
FileVersion = tuple[int, int, int, int] | None
_TIMESTAMP_GRANULARITY_SECONDS = 2.0  # within it, two changes can have the same timestamp


def get_file_version(path: Path, now: float | None = None) -> FileVersion:
    """Return the version of a file.

    The version of a file that just changed equals no other version: the file may change again
    within the same timestamp. The change time (ctime) also covers permissions. `now` defaults to
    the current time.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    age = (time.time() if now is None else now) - stat.st_ctime
    recent = time.time_ns() if abs(age) < _TIMESTAMP_GRANULARITY_SECONDS else 0
    return (stat.st_ino, stat.st_size, stat.st_ctime_ns, recent)


def is_recently_changed(version: FileVersion) -> bool:
    """Return whether the file had just changed when the version was taken."""
    return version is not None and version[3] != 0
