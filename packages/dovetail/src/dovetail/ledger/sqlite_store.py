"""A ledger store in one SQLite file: it survives restarts, and several processes may share it.

A thread owns the connection: see `SqliteThread`.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.store import (
    MAX_AGE_SECONDS,
    MAX_LISTED_SESSIONS,
    MAX_LOOKUP_IDS,
    MAX_LOOKUP_MARKS,
    MAX_MARKS,
    MAX_SESSION_TURNS,
    ChainLookup,
    Clock,
    LedgerStats,
    OpenTurn,
    SessionStats,
    TurnMark,
    closes_turn,
    decode_entry,
    encode_entry,
    hides_reasoning,
    make_call_keys,
)
from dovetail.ledger.unannounced import UnannouncedTurns
from dovetail.storage.database_file import DatabaseFile
from dovetail.storage.faults import StoreFaults
from dovetail.storage.gap_file import GapFile
from dovetail.storage.sqlite import DatabaseSchema, SqliteThread, TableBounds, open_database

SCHEMA_VERSION = 3

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
    _ENTRY_TABLES + _SESSION_TABLES + _MARK_TABLES,
    {1: _SESSION_TABLES, 2: _MARK_TABLES},
)


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Open or create the file. Raises StoreError if it is damaged or not a ledger."""
    return open_database(path, LEDGER_SCHEMA)


DEFAULT_SQLITE_BYTES = 2 << 30

_ROW_OVERHEAD_BYTES = 400  # the row's other columns and its index entries
_RETRY_INTERVAL_SECONDS = 1.0  # between attempts to announce turns late


class SqliteLedgerStore:
    """The default store."""

    __slots__ = (
        "_bounds",
        "_connection",
        "_gap_file",
        "_has_lost_turns",
        "_retry_task",
        "_thread",
        "_unannounced",
        "faults",
        "path",
    )
    is_degraded = False  # a local file is always available

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = DEFAULT_SQLITE_BYTES,
        max_age: float = MAX_AGE_SECONDS,
        clock: Clock = time.time,
        expiry_clock: Clock | None = None,
    ) -> None:
        """`expiry_clock` is the clock by which entries expire, by default `clock`."""
        self.path = path
        self.faults = StoreFaults("ledger")
        self._connection = DatabaseFile(path, LEDGER_SCHEMA, on_reopen=self._bind_gap_file)
        self._bounds = TableBounds(
            self._connection,
            "entries",
            max_bytes=max_bytes,
            max_age=max_age,
            clock=clock,
            expiry_clock=expiry_clock,
        )
        self._gap_file = GapFile(path.with_name(path.name + ".gap"))
        self._bind_gap_file()
        self._unannounced = UnannouncedTurns(self.open_turn, self.close_turn)
        self._has_lost_turns = False  # whether one of them will never be announced
        self._retry_task: asyncio.Task[None] | None = None
        self._thread = SqliteThread(
            self._connection,
            name=f"the ledger {path}",
            cleanup=self._clean_up,
            faults=self.faults,
        )

    async def start(self) -> None:
        """Do nothing: the file is open."""

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

    async def find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        """Return the turns that have, or may have, this chain."""
        return await self._thread.read(lambda: self._find_by_chain(tenant, chain, chain_before))

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

    async def open_turn(self, turn: OpenTurn) -> None:
        """Announce a turn. Returns after the commit."""
        await self._thread.write(lambda: self._open_turn(turn))

    async def close_turn(self, turn: OpenTurn) -> None:
        """Withdraw an announced turn."""
        self._unannounced.discard(turn.id)
        await self._thread.write(lambda: self._remove_mark(turn.tenant, turn.chain_before, turn.id))

    @property
    def gap_at(self) -> float:
        """The time of the last gap; 0 if there is none. All processes share it."""
        self.faults.gap_at = self._gap_file.read()
        return self.faults.gap_at

    async def record_gap(self, turn: OpenTurn, reason: str) -> None:
        """Record that a turn is served although it could not be announced.

        It is announced when the store is back, and the gap then withdrawn.
        """
        self._record_gap(reason)
        self._has_lost_turns |= self._unannounced.add(turn)
        if self._retry_task is None or self._retry_task.done():
            self._retry_task = asyncio.create_task(self._keep_announcing())

    async def _keep_announcing(self) -> None:
        while self._unannounced:
            await asyncio.sleep(_RETRY_INTERVAL_SECONDS)
            await self._unannounced.announce_all()
        if not self._has_lost_turns:
            self._gap_file.withdraw()

    def _record_gap(self, reason: str) -> None:
        self.faults.record_gap(self._bounds.now(), reason)
        self._gap_file.record(self._bounds.now())

    async def put(self, entry: LedgerEntry) -> None:
        """Store an entry. Returns after the commit: the entry survives a crash of the process."""
        await self._thread.write(lambda: self._put(entry))
        if closes_turn(entry):
            self._unannounced.discard(entry.id)

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
        if self._retry_task is not None:
            self._retry_task.cancel()
        await self._thread.close()
        self._gap_file.close()

    def _bind_gap_file(self) -> None:
        """Record a gap if the file next to the database belongs to another one.

        The database was then deleted, moved aside, or used by a version that announced no turns.
        """
        now = self._bounds.now()
        try:
            (identity,) = self._connection.execute("SELECT value FROM identity").fetchone()
            used = self._connection.execute("SELECT 1 FROM sqlite_sequence").fetchone()
        except sqlite3.Error as error:  # a later operation fails, too, and is reported
            self._record_gap(str(error))
            return
        if self._gap_file.bind(identity, is_new=used is None, now=now):
            self.faults.record_gap(now, "the ledger was replaced or upgraded")

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

    def _find_by_chain(self, tenant: str, chain: bytes, chain_before: bytes) -> ChainLookup:
        # First: a gap is withdrawn when its turns have been announced.
        exhaustive = self._bounds.is_expired(self.gap_at)
        rows = self._connection.execute(
            "SELECT id, used FROM entries WHERE tenant = ? AND chain = ? ORDER BY seq DESC LIMIT ?",
            (tenant, chain, MAX_LOOKUP_IDS),
        ).fetchall()
        marks = self._connection.execute(
            "SELECT id, session FROM marks WHERE tenant = ? AND key IN (?, ?) LIMIT ?",
            (tenant, chain, chain_before, MAX_LOOKUP_MARKS),
        ).fetchall()
        min_used = self._bounds.min_used()
        expired = [(id, "") for id, used in rows if used < min_used]
        return ChainLookup(
            tuple(id for id, used in rows if used >= min_used),
            tuple(TurnMark(*mark) for mark in (*expired, *marks)),
            exhaustive,
        )

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
            self._open_turn(OpenTurn(entry.tenant, entry.id, entry.chain_before))
            return
        (seq,) = self._connection.execute(
            "INSERT INTO entries (tenant, id, chain, used, size, body, hides_reasoning) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO UPDATE SET used = max(used, excluded.used) RETURNING seq",
            (
                entry.tenant,
                entry.id,
                entry.chain,
                self._bounds.now(),
                row_bytes,
                body,
                hides_reasoning(entry),
            ),
        ).fetchone()
        if closes_turn(entry):
            self._remove_mark(entry.tenant, entry.chain_before, entry.id)
        for key in make_call_keys(entry):
            self._connection.execute(
                "INSERT OR IGNORE INTO calls (tenant, key, seq) VALUES (?, ?, ?)",
                (entry.tenant, key, seq),
            )
        if entry.session:
            self._connection.execute(
                "INSERT OR IGNORE INTO sessions (tenant, session, seq) VALUES (?, ?, ?)",
                (entry.tenant, entry.session, seq),
            )
        self._bounds.evict()

    def _open_turn(self, turn: OpenTurn) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO marks (tenant, key, id, session) VALUES (?, ?, ?, ?)",
            (turn.tenant, turn.chain_before, turn.id, turn.session),
        )

    def _remove_mark(self, tenant: str, key: bytes, id: str) -> None:
        self._connection.execute(
            "DELETE FROM marks WHERE tenant = ? AND key = ? AND id = ?", (tenant, key, id)
        )

    def _clean_up(self) -> None:
        self._bounds.delete_expired()
        self._connection.execute(
            "DELETE FROM marks WHERE seq <= (SELECT max(seq) FROM marks) - ?", (MAX_MARKS,)
        )

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
