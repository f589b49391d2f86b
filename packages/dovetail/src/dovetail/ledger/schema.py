"""The SQLite file of the ledger: its tables and its version."""

import sqlite3
from pathlib import Path

from dovetail.storage.sqlite import DatabaseSchema
from dovetail.storage.sqlite import open_database as connect_file

SCHEMA_VERSION = 2

_APPLICATION_ID = 0x446F7665  # "Dove"

# By session; a table of its own, so that a file of version 1 has it at once, however large.
_SESSION_TABLES = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL REFERENCES entries (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, session, seq)
) WITHOUT ROWID;
CREATE INDEX sessions_seq ON sessions (seq);
"""

# The totals are kept by triggers, so that no look at the bounds ever counts rows.
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
    "ledger", _APPLICATION_ID, SCHEMA_VERSION, _ENTRY_TABLES + _SESSION_TABLES, {1: _SESSION_TABLES}
)


def connect_ledger(path: Path) -> sqlite3.Connection:
    """The file, made if it is missing. StoreError names a file that is not ours or is damaged."""
    return connect_file(path, LEDGER_SCHEMA)
