"""A response backend in one SQLite file: it survives restarts, and processes can share it."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from dovetail.responses.backend import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_BYTES,
    Clock,
    ResponseStats,
    StoredResponse,
    decode_response,
    encode_response,
)
from dovetail.storage.database_file import DatabaseFile
from dovetail.storage.faults import StoreFaults
from dovetail.storage.sqlite import DatabaseSchema, SqliteThread, TableBounds

_ROW_OVERHEAD_BYTES = 200  # the row's other columns and its index entries

# Triggers maintain the totals, so that checking the bounds never counts rows.
_TABLES = """
CREATE TABLE responses (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX responses_used ON responses (used, seq, size);
CREATE TABLE totals (responses INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER responses_added AFTER INSERT ON responses BEGIN
    UPDATE totals SET responses = responses + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER responses_changed AFTER UPDATE OF size ON responses BEGIN
    UPDATE totals SET bytes = bytes + new.size - old.size;
END;
CREATE TRIGGER responses_dropped AFTER DELETE ON responses BEGIN
    UPDATE totals SET responses = responses - 1, bytes = bytes - old.size;
END;
"""
SCHEMA = DatabaseSchema("response store", 0x446F7652, 1, _TABLES)  # "DovR"


class SqliteResponseBackend:
    """The default backend."""

    __slots__ = ("_bounds", "_connection", "_thread", "faults")

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age: float = DEFAULT_MAX_AGE_SECONDS,
        clock: Clock = time.time,
        expiry_clock: Clock | None = None,
    ) -> None:
        """`expiry_clock` is the clock by which responses expire, by default `clock`."""
        self.faults = StoreFaults("responses")
        self._connection = DatabaseFile(path, SCHEMA)
        self._bounds = TableBounds(
            self._connection,
            "responses",
            max_bytes=max_bytes,
            max_age=max_age,
            clock=clock,
            expiry_clock=expiry_clock,
        )
        self._thread = SqliteThread(
            self._connection,
            name=f"the response store {path}",
            cleanup=self._bounds.delete_expired,
            faults=self.faults,
        )

    async def ping(self) -> None:
        """Do nothing: a local file needs no connection."""

    async def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the response, or None if the tenant has no response with this id."""
        return await self._thread.read(lambda: self._get(tenant, id))

    async def put(self, response: StoredResponse) -> None:
        """Store a response. Returns after the commit: it survives a crash of the process."""
        await self._thread.write(lambda: self._put(response))

    async def swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Replace a response, unless the stored one is no longer `old`."""
        swapped: list[bool] = []
        await self._thread.write(lambda: swapped.append(self._swap(old, new)))
        return swapped[-1]

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response. Returns False if it does not exist."""
        found: list[int] = []
        await self._thread.write(lambda: found.append(self._delete(tenant, id)))
        return bool(found[-1])

    async def get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str] | None:
        """Return the ids that exist."""
        return await self._thread.read(lambda: self._get_existing_ids(tenant, ids))

    async def touch(self, tenant: str, ids: Sequence[str]) -> None:
        """Mark responses as used."""
        rows = [(self._bounds.now(), tenant, id, self._bounds.min_used()) for id in ids]
        query = "UPDATE responses SET used = max(used, ?) WHERE tenant = ? AND id = ? AND used >= ?"
        await self._thread.write(lambda: self._execute_many(query, rows))

    async def stats(self) -> ResponseStats:
        """Count the stored responses. Expired ones count until the next write."""
        return await self._thread.read(self._stats)

    async def close(self) -> None:
        """Finish the queued jobs, then close the file."""
        await self._thread.close()

    # The methods below run in the thread.

    def _get(self, tenant: str, id: str) -> StoredResponse | None:
        query = "SELECT body FROM responses WHERE tenant = ? AND id = ? AND used >= ?"
        row = self._connection.execute(query, (tenant, id, self._bounds.min_used())).fetchone()
        return decode_response(row[0]) if row else None

    def _put(self, response: StoredResponse) -> None:
        body = encode_response(response)
        size = len(body) + _ROW_OVERHEAD_BYTES
        if size > self._bounds.max_bytes:
            return
        self._connection.execute(
            "INSERT INTO responses (tenant, id, used, size, body) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO UPDATE SET "
            "used = max(used, excluded.used), size = excluded.size, body = excluded.body",
            (response.tenant, response.id, self._bounds.now(), size, body),
        )
        self._bounds.evict()

    def _swap(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Compare and replace in the transaction of the write, which locks the file."""
        if self._get(old.tenant, old.id) != old:
            return False
        self._put(new)
        return True

    def _delete(self, tenant: str, id: str) -> int:
        query = "DELETE FROM responses WHERE tenant = ? AND id = ? AND used >= ?"
        return self._connection.execute(query, (tenant, id, self._bounds.min_used())).rowcount

    def _get_existing_ids(self, tenant: str, ids: Sequence[str]) -> set[str]:
        query = (
            "SELECT id FROM responses "
            "WHERE tenant = ? AND id IN (SELECT value FROM json_each(?)) AND used >= ?"
        )
        rows = self._connection.execute(
            query, (tenant, json.dumps(list(ids)), self._bounds.min_used())
        )
        return {id for (id,) in rows}

    def _execute_many(self, query: str, rows: list[tuple[float, str, str, float]]) -> None:
        self._connection.executemany(query, rows)

    def _stats(self) -> ResponseStats:
        return ResponseStats(*self._bounds.totals())
