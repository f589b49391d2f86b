"""A SQLite file of ours: whose it is, which version its tables have, and how it is opened."""

import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.storage.fault import StoreError

BUSY = 5.0  # seconds to wait for another process that writes

_PAGE = 8192  # a turn has 2 to 3 KB: on pages of 4 KB a third of the file would be empty
_WAL_LIMIT = 16 << 20  # bytes of log kept after a checkpoint


@dataclass(frozen=True)
class Form:
    """What a file of one kind looks like.

    `application` tells our files from other programs', and one kind from another. `upgrades` has,
    for an older version, the statements that make the next one of it.
    """

    what: str
    application: int
    version: int
    tables: str
    upgrades: Mapping[int, str] = field(default_factory=dict)


def connect(path: Path, form: Form) -> sqlite3.Connection:
    """The file, made if it is missing. StoreError names a file that is not ours or is damaged."""
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It holds what people said: for its owner alone, like the files SQLite puts beside it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, path, form)
    except (sqlite3.Error, OSError, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot open the {form.what} {path}: {error}; if it is damaged or another program's, "
            "move it away or choose another data folder"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, form: Form) -> None:
    # In one transaction, or the tables could be another process's, made between two looks.
    connection.execute("BEGIN")
    _check_owner(connection, path, form)
    connection.execute("COMMIT")
    connection.execute(f"PRAGMA page_size = {_PAGE}")  # heeded by a new file only
    _use_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    connection.execute("BEGIN IMMEDIATE")
    # Looked at again under the lock: another process may have made the tables just now.
    version = _check_owner(connection, path, form)
    if version == 0:
        _run(connection, form.tables)
        connection.execute(f"PRAGMA application_id = {form.application}")
    else:
        for older in range(version, form.version):
            _run(connection, form.upgrades[older])
    connection.execute(f"PRAGMA user_version = {form.version}")
    connection.execute("COMMIT")


def _check_owner(connection: sqlite3.Connection, path: Path, form: Form) -> int:
    """The file's version, 0 for one that is empty. StoreError if it is not ours to use."""
    version = _number(connection, "PRAGMA user_version")
    application = _number(connection, "PRAGMA application_id")
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != form.application:
        raise StoreError(f"{path} is another program's database, not a {form.what}")
    if version != form.version and version not in form.upgrades:
        raise StoreError(
            f"the {form.what} {path} has version {version}, "
            f"and this Dovetail knows version {form.version}"
        )
    return version


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait where several switch at once."""
    deadline = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run(connection: sqlite3.Connection, script: str) -> None:
    """The statements one by one: `executescript` would commit what was begun."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            connection.execute(pending.strip())
            pending = ""


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
