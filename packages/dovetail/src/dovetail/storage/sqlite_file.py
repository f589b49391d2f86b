"""A SQLite file of ours: whose it is, which version its tables have, and how it is opened."""

import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.storage.fault import StoreError

BUSY_TIMEOUT_SECONDS = 5.0  # seconds to wait for another process that writes

_PAGE_BYTES = 8192  # a turn has 2 to 3 KB: on pages of 4 KB a third of the file would be empty
_MAX_WAL_BYTES = 16 << 20  # bytes of log kept after a checkpoint


@dataclass(frozen=True)
class DatabaseSchema:
    """What a file of one kind looks like.

    `application` tells our files from other programs', and one kind from another. `upgrades` has,
    for an older version, the statements that make the next one of it.
    """

    name: str
    application_id: int
    version: int
    tables: str
    migrations: Mapping[int, str] = field(default_factory=dict)


def open_database(path: Path, schema: DatabaseSchema) -> sqlite3.Connection:
    """The file, made if it is missing. StoreError names a file that is not ours or is damaged."""
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It holds what people said: for its owner alone, like the files SQLite puts beside it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, path, schema)
    except (sqlite3.Error, OSError, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot open the {schema.name} {path}: {error}; if it is damaged or another program's, "
            "move it away or choose another data folder"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> None:
    # In one transaction, or the tables could be another process's, made between two looks.
    connection.execute("BEGIN")
    _check_owner(connection, path, schema)
    connection.execute("COMMIT")
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # heeded by a new file only
    _enable_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
    connection.execute("BEGIN IMMEDIATE")
    # Looked at again under the lock: another process may have made the tables just now.
    version = _check_owner(connection, path, schema)
    if version == 0:
        _run_script(connection, schema.tables)
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
    else:
        for older in range(version, schema.version):
            _run_script(connection, schema.migrations[older])
    connection.execute(f"PRAGMA user_version = {schema.version}")
    connection.execute("COMMIT")


def _check_owner(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> int:
    """The file's version, 0 for one that is empty. StoreError if it is not ours to use."""
    version = _query_int(connection, "PRAGMA user_version")
    application = _query_int(connection, "PRAGMA application_id")
    tables = _query_int(connection, "SELECT count(*) FROM sqlite_master")
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != schema.application_id:
        raise StoreError(f"{path} is another program's database, not a {schema.name}")
    if version != schema.version and version not in schema.migrations:
        raise StoreError(
            f"the {schema.name} {path} has version {version}, "
            f"and this Dovetail knows version {schema.version}"
        )
    return version


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait where several switch at once."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """The statements one by one: `executescript` would commit what was begun."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            connection.execute(pending.strip())
            pending = ""


def _query_int(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
