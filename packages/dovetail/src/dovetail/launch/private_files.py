"""Private files and folders: they hold what only this user should see."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from dovetail.launch.plan import LaunchError


def create_private_dir(folder: Path) -> None:
    """Makes a folder, and those above it, for this user alone. What is there stays as it is."""
    for one in (*reversed(folder.parents), folder):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)


def open_private_file(path: Path) -> IO[str]:
    """A new file, for this user alone. One of this name that others still use stays theirs."""
    try:
        create_private_dir(path.parent)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        told = f"cannot write {path}: {error.strerror}; --data-dir names another folder"
        raise LaunchError(told) from error
    return open(file, "a+", encoding="utf-8", errors="replace")


def write_private_files(files: Mapping[Path, str]) -> None:
    """Writes each whole: a harness that reads one at the same time sees the old or the new."""
    for path, text in files.items():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with open_private_file(draft) as file:
            file.write(text)
        draft.replace(path)


def remove_private_files(files: Iterable[Path]) -> None:
    """Takes them away, and folders that held nothing else."""
    for path in files:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
