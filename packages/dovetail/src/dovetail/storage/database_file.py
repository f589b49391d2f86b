"""A database file that may be damaged, deleted or replaced, also while a server uses it."""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from dovetail.storage.faults import StoreError
from dovetail.storage.sqlite import DatabaseSchema, open_database

_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SIDE_FILES = ("-wal", "-shm")
# Checking takes about a second per GiB. Damage of larger files is found when it is read.
_MAX_CHECKED_BYTES = 512 << 20

_log = logging.getLogger(__name__)

_FileId = tuple[int, int] | None


class DamagedFileError(StoreError):
    """The file is not a database, or its content is inconsistent."""


class DatabaseFile:
    """The connection to a database file, opened again if the file was deleted or replaced.

    SQLite would continue to use the deleted file, and everything written to it would be lost.

    `on_reopen` is called after that. While the new file cannot be opened, operations fail.
    """

    __slots__ = (
        "_connection",
        "_file_id",
        "_on_reopen",
        "_path",
        "_path_text",
        "_schema",
        "_wal_id",
        "_wal_path",
    )

    def __init__(
        self, path: Path, schema: DatabaseSchema, on_reopen: Callable[[], None] = lambda: None
    ) -> None:
        self._path = path
        self._path_text = str(path)  # paths as text: they are checked before each transaction
        self._wal_path = str(_side_file(path, "-wal"))
        self._schema = schema
        self._on_reopen = on_reopen
        self._wal_id: _FileId = None
        self._connection: sqlite3.Connection | None = self._open()
        self._file_id = _get_file_id(path)

    def execute(self, query: str, parameters: Iterable[Any] = ()) -> sqlite3.Cursor:
        return self._require().execute(query, tuple(parameters))

    def executemany(self, query: str, rows: Iterable[Iterable[Any]]) -> sqlite3.Cursor:
        return self._require().executemany(query, rows)  # type: ignore[arg-type]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def reopen_if_replaced(self) -> None:
        """Open the file again if another or none is at its path. Costs two `stat` calls.

        Must be called outside a transaction. Raises `sqlite3.Error` if the file cannot be opened.
        """
        current = _get_file_id(self._path_text)
        if self._connection is not None and current == self._file_id:
            self._wal_id = _get_file_id(self._wal_path)
            return
        fields = {"store": self._schema.name, "path": str(self._path)}
        if self._connection is not None:
            event = "store_file_deleted" if current is None else "store_file_replaced"
            _log.error(event, extra={"fields": fields})
            self.close()
        try:
            self._connection = self._open()
        except StoreError as error:
            raise sqlite3.OperationalError(str(error)) from error
        self._file_id = _get_file_id(self._path)
        _log.warning("store_file_reopened", extra={"fields": fields})
        self._on_reopen()

    def _open(self) -> sqlite3.Connection:
        """Open the file without the log of a deleted one, which SQLite would apply to it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked_folder(self._path.parent):
            log = _get_file_id(_side_file(self._path, "-wal"))
            if not self._path.exists() or (log is not None and log == self._wal_id):
                for suffix in _SIDE_FILES:
                    _side_file(self._path, suffix).unlink(missing_ok=True)
            with suppress(OSError):  # `open_database` reports it
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._wal_id = None
        return open_database(self._path, self._schema)

    def _require(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError(f"{self._path} cannot be opened")
        return self._connection


def move_damaged_file(path: Path, name: str) -> Path | None:
    """Move a damaged file aside. Returns its new path, or None if the file is not damaged.

    Processes that start at the same time move it once.
    """
    if not path.exists():
        return None
    with _locked_folder(path.parent):
        try:
            require_undamaged(path, name)
        except DamagedFileError as error:
            moved_to = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
            for suffix in ("", *_SIDE_FILES):
                with suppress(FileNotFoundError):
                    _side_file(path, suffix).rename(_side_file(moved_to, suffix))
            fields = {"store": name, "path": str(path), "moved_to": str(moved_to)}
            _log.error("store_file_damaged", extra={"fields": {**fields, "error": str(error)}})
            return moved_to
    return None


def require_undamaged(path: Path, name: str) -> None:
    """Raise `DamagedFileError` if the file is damaged."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    problem: object = None
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if path.stat().st_size <= _MAX_CHECKED_BYTES:
                (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                problem = None if result == "ok" else result
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_CODES:
            problem = error
    if problem is not None:
        raise DamagedFileError(
            f"the {name} {path} is damaged: {problem}. Restore it from a backup, or move it and "
            f"{path.name}-wal to another folder to start with an empty one."
        )


def loose_permissions_warning(folder: Path) -> str | None:
    """Return a warning if other users of the machine can access the data folder."""
    try:
        mode = folder.stat().st_mode & 0o777
    except OSError:
        return None
    if not mode & 0o077:
        return None
    return (
        f"the data folder {folder} has mode {mode:04o}: other users of this machine can access it. "
        f"Run: chmod 700 {folder}"
    )


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Exclude other processes that create or move database files of the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _side_file(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _get_file_id(path: Path | str) -> _FileId:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
