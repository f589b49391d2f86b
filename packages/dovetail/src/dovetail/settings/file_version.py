"""Detect changes of a file without reading it."""

import os
import time
from pathlib import Path

#: Identifies a version of a file; None if the file cannot be read.
FileVersion = tuple[int, int, int, int] | None
_TIMESTAMP_GRANULARITY_SECONDS = 2.0  # a file can change twice within one timestamp


def get_file_version(path: Path, now: float | None = None) -> FileVersion:
    """The version of a file. One that just changed equals no other: it may change again unnoticed.

    The change time (ctime) also covers permissions. `now` is the current time if not given.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    age = (time.time() if now is None else now) - stat.st_ctime
    recent = time.time_ns() if abs(age) < _TIMESTAMP_GRANULARITY_SECONDS else 0
    return (stat.st_ino, stat.st_size, stat.st_ctime_ns, recent)


def is_recently_changed(version: FileVersion) -> bool:
    """Whether the file had just changed when the version was taken."""
    return version is not None and version[3] != 0
