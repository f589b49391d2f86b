"""How old and how large a table may become. What was not used for longest goes first."""

import sqlite3
from collections.abc import Callable

_EVICT_BYTES = 4 << 20  # bytes freed at once: not on every put, and never a long pause
_MAX_EXPIRED_ROWS = (
    1000  # rows past their age dropped in one transaction; they are not seen in any case
)


class TableBounds:
    """Those of a table whose rows have `seq`, `used` and `size`, beside a table of `totals`."""

    __slots__ = ("_clock", "_connection", "_max_age", "_table", "max_bytes")

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str,
        *,
        max_bytes: int,
        max_age: float,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._table = table
        self.max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    def min_used(self) -> float:
        """What was last used before then is not there any more."""
        return self._clock() - self._max_age

    def totals(self) -> tuple[int, int]:
        """Rows and bytes. Rows past their age count until the next write."""
        query = f"SELECT {self._table}, bytes FROM totals"
        rows, held = self._connection.execute(query).fetchone()
        return rows, held

    def delete_expired(self) -> None:
        """Drop what is too old. Each row is dropped once."""
        self._connection.execute(
            f"DELETE FROM {self._table} WHERE seq IN "
            f"(SELECT seq FROM {self._table} WHERE used < ? ORDER BY used LIMIT ?)",
            (self.min_used(), _MAX_EXPIRED_ROWS),
        )

    def evict(self) -> None:
        """Drop the least recently used while there is too much."""
        _, held = self.totals()
        if held <= self.max_bytes:
            return
        target = self.max_bytes - min(self.max_bytes // 16, _EVICT_BYTES)
        doomed: list[tuple[int]] = []
        query = f"SELECT seq, size FROM {self._table} ORDER BY used, seq"
        for seq, size in self._connection.execute(query):
            if held <= target:
                break
            held -= size
            doomed.append((seq,))
        self._connection.executemany(f"DELETE FROM {self._table} WHERE seq = ?", doomed)
