"""A usage store in one SQLite file, which the processes of a server share."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dovetail.storage.database_file import DatabaseFile
from dovetail.storage.faults import StoreFaults
from dovetail.storage.sqlite import Connection, DatabaseSchema, ExpiryClock, SqliteThread
from dovetail.usage.counts import (
    COUNTERS,
    DAY_SECONDS,
    DIMENSIONS,
    OTHER_SESSIONS,
    UsageCounts,
    UsageKey,
    floor_day,
)
from dovetail.usage.periods import day_name
from dovetail.usage.store import (
    DEFAULT_MAX_AGE_SECONDS,
    DEFAULT_MAX_SESSIONS,
    SPENT_MAX_AGE_SECONDS,
    STALE_SECONDS,
    FinishedRequest,
    OpenRequest,
    Spent,
    SpentKey,
    UsageBatch,
    UsageQuery,
    UsageRow,
    sum_by_hour,
    sum_spent,
)

_KEY_COLUMNS = ", ".join(f"{name} TEXT NOT NULL" for name in DIMENSIONS)
_COUNT_COLUMNS = ", ".join(f"{name} INTEGER NOT NULL" for name in COUNTERS)
_KEY_NAMES, _COUNT_NAMES = ", ".join(DIMENSIONS), ", ".join(COUNTERS)
_TENANT_SCOPE, _KEY_SCOPE = "tenant", "key"

# `sessions` has the sessions of a day that are counted by name.
_TABLES = f"""
CREATE TABLE usage (
    hour INTEGER NOT NULL, {_KEY_COLUMNS}, {_COUNT_COLUMNS}, PRIMARY KEY (hour, {_KEY_NAMES})
) WITHOUT ROWID;
CREATE TABLE open_requests (
    process TEXT NOT NULL, number INTEGER NOT NULL, hour INTEGER NOT NULL, {_KEY_COLUMNS},
    PRIMARY KEY (process, number)
) WITHOUT ROWID;
CREATE TABLE processes (process TEXT PRIMARY KEY, seen REAL NOT NULL, batch INTEGER NOT NULL);
CREATE TABLE sessions (
    day INTEGER NOT NULL, tenant TEXT NOT NULL, session TEXT NOT NULL,
    PRIMARY KEY (day, tenant, session)
) WITHOUT ROWID;
CREATE TABLE session_counts (
    day INTEGER NOT NULL, tenant TEXT NOT NULL, sessions INTEGER NOT NULL,
    PRIMARY KEY (day, tenant)
) WITHOUT ROWID;
CREATE TABLE spent (
    period TEXT NOT NULL, scope TEXT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL,
    tokens INTEGER NOT NULL, cost_nanos INTEGER NOT NULL, PRIMARY KEY (period, scope, tenant, key)
) WITHOUT ROWID;
"""
SCHEMA = DatabaseSchema("usage store", 0x446F7655, 1, _TABLES)  # "DovU"

_ADD_COUNTS = (
    f"INSERT INTO usage VALUES (?{', ?' * (len(DIMENSIONS) + len(COUNTERS))}) "
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{n} = {n} + excluded.{n}' for n in COUNTERS)}"
)
_ADD_SPENT = (
    "INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
    "tokens = tokens + excluded.tokens, cost_nanos = cost_nanos + excluded.cost_nanos"
)
_ADD_SESSION = (
    "INSERT INTO session_counts VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET sessions = sessions + 1"
)
_INTERRUPTED = UsageCounts(interrupted=1)
_NOT_INTERRUPTED = UsageCounts(interrupted=-1)
#: SQL of each value that rows can be grouped by.
_GROUPS = {name: name for name in DIMENSIONS} | {
    "hour": "hour",
    "day": f"hour / {DAY_SECONDS} * {DAY_SECONDS}",
}


class MemoryDatabase:
    """A database in the memory of this process, for `--store memory`."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(_TABLES)

    def execute(self, query: str, parameters: Iterable[Any] = (), /) -> sqlite3.Cursor:
        return self._connection.execute(query, tuple(parameters))

    def executemany(self, query: str, rows: Iterable[Iterable[Any]], /) -> sqlite3.Cursor:
        return self._connection.executemany(query, rows)  # type: ignore[arg-type]

    def close(self) -> None:
        self._connection.close()

    def reopen_if_replaced(self) -> None:
        """Do nothing: there is no file."""


class SqliteUsageStore:
    """The default store. `path=None`: in the memory of this process."""

    __slots__ = ("_clock", "_connection", "_max_age", "_max_sessions", "_thread", "faults")

    def __init__(
        self,
        path: Path | None,
        *,
        max_age: float = DEFAULT_MAX_AGE_SECONDS,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.faults = StoreFaults("usage")
        self._max_age = max_age
        self._max_sessions = max_sessions
        self._clock = clock or ExpiryClock()
        self._connection: Connection = (
            MemoryDatabase() if path is None else DatabaseFile(path, SCHEMA)
        )
        self._thread = SqliteThread(
            self._connection,
            name=f"the usage store {path}",
            cleanup=lambda: None,
            faults=self.faults,
        )

    async def apply(self, batch: UsageBatch) -> None:
        """Apply a batch. Returns after the commit."""
        await self._thread.write(lambda: self._apply(batch))

    async def maintain(self, process: str | None) -> None:
        """Note that a process lives, count the requests of crashed ones, delete expired rows."""
        await self._thread.write(lambda: self._maintain(process))

    async def read(self, query: UsageQuery) -> list[UsageRow]:
        """Return the sums of each group."""
        return await self._thread.read(lambda: self._read(query))

    async def read_spent(self, keys: Sequence[SpentKey]) -> list[Spent]:
        """Return what was spent in each period."""
        return await self._thread.read(lambda: [self._read_spent(key) for key in keys])

    async def close(self) -> None:
        """Finish the queued jobs, then close the file."""
        await self._thread.close()

    # The methods below run in the thread.

    def _apply(self, batch: UsageBatch) -> None:
        row = self._execute("SELECT batch FROM processes WHERE process = ?", batch.process)
        if row and row[0][0] >= batch.number:
            return  # it was committed, and the result was lost
        self._execute(
            "INSERT INTO processes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
            "seen = excluded.seen, batch = excluded.batch",
            *(batch.process, self._clock(), batch.number),
        )
        for request in batch.opened:
            self._open(batch.process, request)
        finished = [self._close(batch.process, one) for one in batch.finished]
        for (hour, key), counts in sum_by_hour(finished).items():
            self._add(hour, key, counts)
        spent = sum_spent(batch.finished).items()
        self._connection.executemany(
            _ADD_SPENT, [(*_spent_row(key), one.tokens, one.cost_nanos) for key, one in spent]
        )

    def _open(self, process: str, request: OpenRequest) -> None:
        key = self._limit_sessions(request)
        self._execute(
            f"INSERT INTO open_requests VALUES (?, ?, ?{', ?' * len(DIMENSIONS)})",
            *(process, request.number, request.hour, *_values(key, DIMENSIONS)),
        )

    def _close(self, process: str, one: FinishedRequest) -> FinishedRequest:
        """Delete the row of an announced request, and return it with its final counts."""
        request, counts = one.request, one.counts
        key = self._limit_sessions(request)
        if one.announced:
            query = "DELETE FROM open_requests WHERE process = ? AND number = ?"
            deleted = self._connection.execute(query, (process, request.number)).rowcount
            if not deleted:  # the process stalled and was taken for a crashed one
                counts += _NOT_INTERRUPTED
        return FinishedRequest(OpenRequest(request.number, request.hour, key), counts)

    def _limit_sessions(self, request: OpenRequest) -> UsageKey:
        """Return the key, without the name of the session if the day has too many."""
        key, day = request.key, floor_day(request.hour)
        if not key.session:
            return key
        where = "WHERE day = ? AND tenant = ?"
        if self._execute(
            f"SELECT 1 FROM sessions {where} AND session = ?", day, key.tenant, key.session
        ):
            return key
        row = self._execute(f"SELECT sessions FROM session_counts {where}", day, key.tenant)
        if (row and row[0][0] >= self._max_sessions) or self._max_sessions == 0:
            return UsageKey(key.tenant, key.key, key.model, OTHER_SESSIONS, key.harness)
        self._execute("INSERT INTO sessions VALUES (?, ?, ?)", day, key.tenant, key.session)
        self._execute(_ADD_SESSION, day, key.tenant)
        return key

    def _add(self, hour: int, key: UsageKey, counts: UsageCounts) -> None:
        self._execute(_ADD_COUNTS, hour, *_values(key, DIMENSIONS), *_values(counts, COUNTERS))

    def _maintain(self, process: str | None) -> None:
        now = self._clock()
        if process is not None:
            self._execute("UPDATE processes SET seen = ? WHERE process = ?", now, process)
        stale = "(SELECT process FROM processes WHERE seen < ?)"
        for hour, *key in self._execute(
            f"SELECT hour, {_KEY_NAMES} FROM open_requests WHERE process IN {stale}",
            now - STALE_SECONDS,
        ):
            self._add(hour, UsageKey(*key), _INTERRUPTED)
        self._execute(f"DELETE FROM open_requests WHERE process IN {stale}", now - STALE_SECONDS)
        # Rows of processes that only stalled are needed until no batch can be sent again.
        self._execute("DELETE FROM processes WHERE seen < ?", now - DAY_SECONDS)
        self._delete_expired(now)

    def _delete_expired(self, now: float) -> None:
        self._execute("DELETE FROM usage WHERE hour < ?", int(now - self._max_age))
        for table in ("sessions", "session_counts"):
            self._execute(f"DELETE FROM {table} WHERE day < ?", floor_day(now) - 7 * DAY_SECONDS)
        self._execute("DELETE FROM spent WHERE period < ?", day_name(now - SPENT_MAX_AGE_SECONDS))

    def _read(self, query: UsageQuery) -> list[UsageRow]:
        groups = [_GROUPS[name] for name in query.by]
        first = self._clock() - self._max_age if query.since is None else query.since
        span = (int(first), 1 << 62 if query.until is None else query.until)
        by = f"GROUP BY {', '.join(groups)}" if groups else ""
        sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in COUNTERS)
        rows: dict[tuple[str | int, ...], UsageRow] = {}
        for row in self._execute(
            f"SELECT {', '.join([*groups, sums])} FROM usage WHERE hour >= ? AND hour < ? {by}",
            *span,
        ):
            group = row[: len(groups)]
            rows[group] = UsageRow(group, UsageCounts(*row[len(groups) :]))
        stale = "SUM(process NOT IN (SELECT process FROM processes WHERE seen >= ?))"
        for *values, count, crashed in self._execute(
            f"SELECT {', '.join([*groups, 'COUNT(*)', f'COALESCE({stale}, 0)'])} "
            f"FROM open_requests WHERE hour >= ? AND hour < ? {by}",
            *(self._clock() - STALE_SECONDS, *span),
        ):
            group = tuple(values)
            counts = rows.get(group, UsageRow(group)).counts + UsageCounts(interrupted=crashed)
            rows[group] = UsageRow(group, counts, count - crashed)
        return [rows[group] for group in sorted(rows)]

    def _read_spent(self, key: SpentKey) -> Spent:
        query = (
            "SELECT tokens, cost_nanos FROM spent "
            "WHERE period = ? AND scope = ? AND tenant = ? AND key = ?"
        )
        row = self._execute(query, *_spent_row(key))
        return Spent(*row[0]) if row else Spent()

    def _execute(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()


def _values(one: object, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in names)


def _spent_row(key: SpentKey) -> tuple[str, str, str, str]:
    scope = _TENANT_SCOPE if key.key is None else _KEY_SCOPE
    return key.period, scope, key.tenant, key.key or ""
