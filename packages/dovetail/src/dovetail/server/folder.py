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
HELD = "held"  # the file that is locked

_held: list[int] = []  # descriptors; the locks end with this process


def new_folder() -> Path:
    """A folder that nobody else can enter. What others left behind goes before."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Locked before it has its name: a folder without it is never swept.
    new = folder / f"{HELD}.new"
    new.touch(mode=0o600)
    _lock(new)
    new.rename(folder / HELD)
    return folder


def hold(folder: Path) -> None:
    """Keeps the folder for as long as this process lives, however its parent ends."""
    _lock(folder / HELD)


def _lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _held.append(descriptor)


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another parent may be at it
            if _is_ours(folder) and _is_left(folder):
                shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user that others cannot enter, as a parent makes it."""
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return private and found.st_uid == os.geteuid()


def _is_left(folder: Path) -> bool:
    """Whether all processes that held it are gone. OSError where it is no such folder."""
    descriptor = os.open(folder / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
