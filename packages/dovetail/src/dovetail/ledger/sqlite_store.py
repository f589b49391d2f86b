"""A ledger store in one SQLite file: it survives restarts, and several processes may share it.

A thread owns the connection: see `SqliteThread`.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.keyring import KEY_FILE
from dovetail.ledger.sqlite_schema import (
    LEDGER_SCHEMA,
    change_identity,
    count_commit,
    read_position,
)
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
from dovetail.storage.position_file import PositionFile, StorePosition
from dovetail.storage.sqlite import SqliteThread, TableBounds

DEFAULT_SQLITE_BYTES = 2 << 30
POSITION_FILE = "ledger.position"  # not deleted together with `turns.sqlite*`

_ROW_OVERHEAD_BYTES = 400  # the row's other columns and its index entries
_RETRY_INTERVAL_SECONDS = 1.0  # between attempts to announce turns late


class SqliteLedgerStore:
    """The default store."""

    __slots__ = (
        "_bounds",
        "_connection",
        "_gap_file",
        "_has_lost_turns",
        "_position",
        "_position_file",
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
        self._connection = DatabaseFile(path, LEDGER_SCHEMA, on_reopen=self._bind_files)
        self._bounds = TableBounds(
            self._connection,
            "entries",
            max_bytes=max_bytes,
            max_age=max_age,
            clock=clock,
            expiry_clock=expiry_clock,
        )
        self._gap_file = GapFile(path.with_name(path.name + ".gap"))
        self._position_file = PositionFile(path.with_name(POSITION_FILE))
        self._position: StorePosition | None = None  # after the running transaction
        self._bind_files()
        self._unannounced = UnannouncedTurns(self.open_turn, self.close_turn)
        self._has_lost_turns = False  # whether one of them will never be announced
        self._retry_task: asyncio.Task[None] | None = None
        self._thread = SqliteThread(
            self._connection,
            name=f"the ledger {path}",
            cleanup=self._clean_up,
            committed=self._save_position,
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
        self._position_file.close()

    def _bind_files(self) -> None:
        """Record a gap if the database is not the one that was last used in this folder.

        It was then deleted, moved aside, replaced by a backup, or used by a version that announced
        no turns. Its identity changes, so that the replaced file is noticed if it returns.
        """
        now = self._bounds.now()
        with self._position_file.locked():
            known = self._position_file.read()  # first: other processes advance it
            try:
                position, is_new = read_position(self._connection)
                reason = self._find_loss(known, position, is_new=is_new)
                if reason is not None:
                    change_identity(self._connection)
                    position, is_new = read_position(self._connection)
            except sqlite3.Error as error:  # a later operation fails, too, and is reported
                self._record_gap(str(error))
                return
            if self._gap_file.bind(position.identity, is_new=is_new, now=now):
                self.faults.record_gap(now, reason or "the ledger was replaced or upgraded")
            self._position_file.write(position)

    def _find_loss(
        self, known: StorePosition | None, position: StorePosition, *, is_new: bool
    ) -> str | None:
        """Return how turns of this folder may have been lost, or None.

        Versions before the position file made no commits that count.
        """
        if known is None:
            if is_new and self.path.with_name(KEY_FILE).exists():
                return "the ledger of this folder is missing"
            return f"{POSITION_FILE} is missing" if position.commits else None
        if known.identity != position.identity:
            return "the ledger was deleted or replaced"
        is_older = position.commits < known.commits
        return "the ledger is older than its last use" if is_older else None

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
        self._position = count_commit(self._connection)

    def _save_position(self) -> None:
        if self._position is not None:
            self._position_file.advance(self._position)

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
