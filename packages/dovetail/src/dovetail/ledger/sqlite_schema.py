"""The tables of the SQLite ledger store, and the position by which a lost file is noticed."""

import sqlite3
from pathlib import Path

from dovetail.storage.position_file import StorePosition
from dovetail.storage.sqlite import Connection, DatabaseSchema, open_database

SCHEMA_VERSION = 4

_APPLICATION_ID = 0x446F7665  # "Dove"

# A separate table, so that the upgrade from version 1 does not depend on the file size.
_SESSION_TABLES = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL REFERENCES entries (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, session, seq)
) WITHOUT ROWID;
CREATE INDEX sessions_seq ON sessions (seq);
"""

# Turns that may look like a stored one and cannot be loaded: `key` is the chain before an open
# turn, or the chain of an evicted one. Rows of crashed processes stay. Row numbers are reused, so
# that the difference of the largest and the smallest is close to the number of rows.
_MARK_TABLES = """
ALTER TABLE entries ADD COLUMN hides_reasoning INTEGER NOT NULL DEFAULT 1;
CREATE TABLE marks (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    key BLOB NOT NULL,
    id TEXT NOT NULL,
    session TEXT NOT NULL,
    UNIQUE (tenant, key, id)
);
CREATE TRIGGER entries_marked BEFORE DELETE ON entries WHEN old.hides_reasoning BEGIN
    INSERT OR IGNORE INTO marks (tenant, key, id, session) VALUES (
        old.tenant, old.chain, old.id,
        coalesce((SELECT session FROM sessions WHERE seq = old.seq), '')
    );
END;
CREATE TABLE identity (value BLOB NOT NULL);
INSERT INTO identity VALUES (randomblob(8));
"""

# The number of transactions that wrote: a restored backup has fewer than the file it replaces. In
# this table, because storing a turn writes its page anyway.
_COMMIT_COLUMN = """
ALTER TABLE totals ADD COLUMN commits INTEGER NOT NULL DEFAULT 0;
"""

# Triggers maintain the totals, so that checking the bounds never counts rows.
_ENTRY_TABLES = """
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


LEDGER_SCHEMA = DatabaseSchema(
    "ledger",
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _ENTRY_TABLES + _SESSION_TABLES + _MARK_TABLES + _COMMIT_COLUMN,
    {1: _SESSION_TABLES, 2: _MARK_TABLES, 3: _COMMIT_COLUMN},
)


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Open or create the file. Raises StoreError if it is damaged or not a ledger."""
    return open_database(path, LEDGER_SCHEMA)


def read_position(connection: Connection) -> tuple[StorePosition, bool]:
    """Return the position of the ledger, and whether no turn was ever stored or announced in it."""
    identity, commits = connection.execute("SELECT value, commits FROM identity, totals").fetchone()
    used = connection.execute("SELECT 1 FROM sqlite_sequence").fetchone()
    return StorePosition(identity, commits), used is None and commits == 0


def count_commit(connection: Connection) -> StorePosition:
    """Count a transaction, inside of it. Returns the position after its commit."""
    query = (
        "UPDATE totals SET commits = commits + 1 RETURNING (SELECT value FROM identity), commits"
    )
    return StorePosition(*connection.execute(query).fetchone())


def change_identity(connection: Connection) -> None:
    """Make the ledger differ from all its copies. It no longer counts as new."""
    connection.execute("UPDATE identity SET value = randomblob(8)")
    connection.execute("UPDATE totals SET commits = commits + 1")
