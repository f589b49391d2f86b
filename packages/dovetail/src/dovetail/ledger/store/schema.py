"""The SQLite file of the ledger: its tables, its version, and how it is opened."""

import os
import sqlite3
import time
from pathlib import Path

from dovetail.ledger.store.store import StoreError

VERSION = 1
BUSY = 5.0  # seconds to wait for another process that writes

_APPLICATION = 0x446F7665  # "Dove": tells our files from other programs'
_PAGE = 8192  # a turn has 2 to 3 KB: on pages of 4 KB a third of the file would be empty
_WAL_LIMIT = 16 << 20  # bytes of log kept after a checkpoint

# The totals are kept by triggers, so that no look at the bounds ever counts rows.
_TABLES = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    chain BLOB NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX entries_chain ON entries (tenant, chain, seq);
CREATE INDEX entries_used ON entries (used, seq, size);
CREATE TABLE calls (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL REFERENCES entries (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key, seq)
) WITHOUT ROWID;
CREATE INDEX calls_seq ON calls (seq);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER entries_dropped AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.size;
END;
"""


def connect(path: Path) -> sqlite3.Connection:
    """The file, made if it is missing. StoreError names a file that is not ours or is damaged."""
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It holds what people said: for its owner alone, like the files SQLite puts beside it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, path)
    except (sqlite3.Error, OSError, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot open the ledger {path}: {error}; if it is damaged or another program's, "
            "move it away or choose another data folder"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _check_owner(connection, path)
    connection.execute(f"PRAGMA page_size = {_PAGE}")  # heeded by a new file only
    _use_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    connection.execute("BEGIN IMMEDIATE")
    # Looked at again under the lock: another process may have made the tables just now.
    if _check_owner(connection, path) == 0:
        for statement in _statements():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _check_owner(connection: sqlite3.Connection, path: Path) -> int:
    """The file's version, 0 for one that is empty. StoreError if it is not ours to use."""
    version = _number(connection, "PRAGMA user_version")
    application = _number(connection, "PRAGMA application_id")
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != _APPLICATION:
        raise StoreError(f"{path} is another program's database, not a ledger")
    if version != VERSION:
        raise StoreError(
            f"the ledger {path} has version {version}, and this Dovetail knows version {VERSION}"
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


def _statements() -> list[str]:
    found: list[str] = []
    pending = ""
    for line in _TABLES.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)
