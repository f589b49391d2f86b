"""Files and folders that only the current user can read."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from dovetail.launch.plan import LaunchError


def create_private_dir(folder: Path) -> None:
    """Create a folder and its parents for this user only. Existing ones are not changed."""
    for one in (*reversed(folder.parents), folder):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)


def open_private_file(path: Path) -> IO[str]:
    """Create a file for this user only. It replaces an old one, which other processes may use."""
    try:
        create_private_dir(path.parent)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}; set --data-dir to another folder"
        raise LaunchError(message) from error
    return open(file, "a+", encoding="utf-8", errors="replace")


def write_private_files(files: Mapping[Path, str]) -> None:
    """Write each file atomically: a concurrent reader gets either the old or the new content."""
    for path, text in files.items():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with open_private_file(draft) as file:
            file.write(text)
        draft.replace(path)


def remove_private_files(files: Iterable[Path]) -> None:
    """Remove the files, and their folders if these are empty then."""
    for path in files:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
