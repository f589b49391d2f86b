"""The folder in which the processes of one server share what is not in a store.

Each of them holds a lock in it for as long as it lives. A parent that was killed leaves its folder
behind; the next parent of the same user takes it away once nobody holds it any more.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "dovetail-"
LOCK_FILE = "held"  # the file that is locked

_lock_fds: list[int] = []  # descriptors; the locks end with this process


def create_runtime_dir() -> Path:
    """A folder that nobody else can enter. What others left behind goes before."""
    _remove_stale_dirs(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Locked before it has its name: a folder without it is never swept.
    new = folder / f"{LOCK_FILE}.new"
    new.touch(mode=0o600)
    _lock(new)
    new.rename(folder / LOCK_FILE)
    return folder


def hold_runtime_dir(folder: Path) -> None:
    """Keeps the folder for as long as this process lives, however its parent ends."""
    _lock(folder / LOCK_FILE)


def _lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _lock_fds.append(descriptor)


def _remove_stale_dirs(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another parent may be at it
            if _is_ours(folder) and _is_abandoned(folder):
                shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user that others cannot enter, as a parent makes it."""
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return private and found.st_uid == os.geteuid()


def _is_abandoned(folder: Path) -> bool:
    """Whether all processes that held it are gone. OSError where it is no such folder."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
