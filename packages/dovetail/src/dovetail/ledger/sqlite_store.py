"""A ledger store in one SQLite file: it survives restarts, and several processes may share it.

A thread owns the connection: see `SqliteThread`.
"""

import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.store import (
    MAX_AGE_SECONDS,
    MAX_LISTED_SESSIONS,
    MAX_LOOKUP_IDS,
    MAX_SESSION_TURNS,
    Clock,
    LedgerStats,
    SessionStats,
    decode_entry,
    encode_entry,
    make_call_keys,
)
from dovetail.storage.faults import StoreFaults
from dovetail.storage.sqlite import DatabaseSchema, SqliteThread, TableBounds, open_database

SCHEMA_VERSION = 2

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
    "ledger", _APPLICATION_ID, SCHEMA_VERSION, _ENTRY_TABLES + _SESSION_TABLES, {1: _SESSION_TABLES}
)


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Open or create the file. Raises StoreError if it is damaged or not a ledger."""
    return open_database(path, LEDGER_SCHEMA)


DEFAULT_SQLITE_BYTES = 2 << 30

_ROW_OVERHEAD_BYTES = 400  # the row's other columns and its index entries


class SqliteLedgerStore:
    """The default store."""

    __slots__ = ("_bounds", "_connection", "_thread", "faults", "path")
    is_degraded = False  # a local file is always available

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = DEFAULT_SQLITE_BYTES,
        max_age: float = MAX_AGE_SECONDS,
        clock: Clock = time.time,
    ) -> None:
        self.path = path
        self.faults = StoreFaults("ledger")
        self._connection = connect_ledger(path)
        self._bounds = TableBounds(
            self._connection, "entries", max_bytes=max_bytes, max_age=max_age, clock=clock
        )
        self._thread = SqliteThread(
            self._connection,
            name=f"the ledger {path}",
            cleanup=self._bounds.delete_expired,
            faults=self.faults,
        )

    async def get(self, tenant: str, id: str) -> LedgerEntry | None:
        """Return the entry, or None if the tenant has no entry with this id."""
        return await self._thread.read(lambda: self._get(tenant, id))

    async def find_by_call(self, tenant: str, call_key: str) -> tuple[str, ...]:
        """Return the ids of the entries that made this call, newest first."""
        query = (
            "SELECT id FROM calls JOIN entries USING (seq) "
            "WHERE calls.tenant = ? AND key = ? AND used >= ? ORDER BY seq DESC LIMIT ?"
        )
        return await self._thread.read(lambda: self._select_ids(query, tenant, call_key))

    async def find_by_chain(self, tenant: str, chain: bytes) -> tuple[str, ...]:
        """Return the ids of the entries with this chain, newest first."""
        query = (
            "SELECT id FROM entries "
            "WHERE tenant = ? AND chain = ? AND used >= ? ORDER BY seq DESC LIMIT ?"
        )
        return await self._thread.read(lambda: self._select_ids(query, tenant, chain))

    async def find_by_session(self, tenant: str, session: str) -> tuple[str, ...]:
        """Return the ids of the entries of this session, oldest first."""
        query = (
            "SELECT id FROM sessions JOIN entries USING (seq) "
            "WHERE sessions.tenant = ? AND session = ? AND used >= ? ORDER BY seq LIMIT ?"
        )
        return await self._thread.read(
            lambda: self._select_ids(query, tenant, session, MAX_SESSION_TURNS)
        )

    async def list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        """Return the sessions of a tenant, newest first."""
        return await self._thread.read(lambda: self._list_sessions(tenant))

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry. Returns after the commit: the entry survives a crash of the process."""
        await self._thread.write(lambda: self._put(entry))

    async def touch(self, tenant: str, ids: Iterable[str]) -> None:
        """Mark entries as used."""
        rows = [(tenant, id) for id in ids]
        if rows:
            await self._thread.write(lambda: self._touch(rows))

    async def version(self) -> int | None:
        """Return a number that changes with every commit of another connection."""
        return await self._thread.read(self._version)

    async def stats(self) -> LedgerStats:
        """Return the number and size of the entries. Expired ones count until the next write."""
        return await self._thread.read(self._stats)

    async def close(self) -> None:
        """Finish pending operations, then close the file."""
        await self._thread.close()

    # The methods below run in the thread.

    def _get(self, tenant: str, id: str) -> LedgerEntry | None:
        query = "SELECT body FROM entries WHERE tenant = ? AND id = ? AND used >= ?"
        row = self._connection.execute(query, (tenant, id, self._bounds.min_used())).fetchone()
        return decode_entry(row[0]) if row else None

    def _select_ids(
        self, query: str, tenant: str, name: str | bytes, limit: int = MAX_LOOKUP_IDS
    ) -> tuple[str, ...]:
        rows = self._connection.execute(query, (tenant, name, self._bounds.min_used(), limit))
        return tuple(id for (id,) in rows)

    def _list_sessions(self, tenant: str) -> tuple[SessionStats, ...]:
        query = (
            "SELECT session, count(*), max(used) AS last FROM sessions JOIN entries USING (seq) "
            "WHERE sessions.tenant = ? AND used >= ? GROUP BY session ORDER BY last DESC LIMIT ?"
        )
        rows = self._connection.execute(
            query, (tenant, self._bounds.min_used(), MAX_LISTED_SESSIONS)
        )
        return tuple(SessionStats(*row) for row in rows)

    def _put(self, entry: LedgerEntry) -> None:
        body = encode_entry(entry)
        row_bytes = len(body) + _ROW_OVERHEAD_BYTES
        if row_bytes > self._bounds.max_bytes:
            return
        self._connection.execute(
            "INSERT INTO entries (tenant, id, chain, used, size, body) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO UPDATE SET used = max(used, excluded.used)",
            (entry.tenant, entry.id, entry.chain, self._bounds.now(), row_bytes, body),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO calls (tenant, key, seq) "
            "SELECT tenant, ?, seq FROM entries WHERE tenant = ? AND id = ?",
            [(key, entry.tenant, entry.id) for key in make_call_keys(entry)],
        )
        if entry.session:
            self._connection.execute(
                "INSERT OR IGNORE INTO sessions (tenant, session, seq) "
                "SELECT tenant, ?, seq FROM entries WHERE tenant = ? AND id = ?",
                (entry.session, entry.tenant, entry.id),
            )
        self._bounds.evict()

    def _touch(self, rows: list[tuple[str, str]]) -> None:
        now = self._bounds.now()
        self._connection.executemany(
            "UPDATE entries SET used = max(used, ?) WHERE tenant = ? AND id = ? AND used >= ?",
            [(now, tenant, id, self._bounds.min_used()) for tenant, id in rows],
        )

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _stats(self) -> LedgerStats:
        return LedgerStats(*self._bounds.totals())
