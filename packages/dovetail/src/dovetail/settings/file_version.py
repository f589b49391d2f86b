"""Whether a file is another one than before, without reading it."""

import os
import time
from pathlib import Path

#: What tells two versions of a file apart; None where there is none that can be read.
FileVersion = tuple[int, int, int, int] | None
_TIMESTAMP_GRANULARITY_SECONDS = 2.0  # seconds in which a file can change without its time telling


def get_file_version(path: Path) -> FileVersion:
    """The version of a file. One that has just changed may do so again unseen: it is like no other.

    The time is that of any change, also of who may read it.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    unsure = (
        time.time_ns() if abs(time.time() - found.st_ctime) < _TIMESTAMP_GRANULARITY_SECONDS else 0
    )
    return (found.st_ino, found.st_size, found.st_ctime_ns, unsure)


def is_recently_changed(version: FileVersion) -> bool:
    """Whether the file had just changed."""
    return version is not None and version[3] != 0
