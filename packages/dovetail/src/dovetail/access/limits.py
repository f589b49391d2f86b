"""How much one key may ask: requests and tokens a minute, and requests at once.

A minute's worth may come in one go, then more as time passes: of each key only the moment is kept
at which all that was asked so far will be made up for (GCRA). What an answer costs is known when it
is over, so tokens are paid afterwards: who has spent more than there was waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from dovetail_model import RateLimited, Usage

MINUTE = 60.0
COME_BACK = 2.0  # seconds after which one who had too many at once may try again
_IDLE_ROWS = 1024
_GRAIN = 1e-3  # of one request: sums of small times must not make it one fewer


@dataclass(frozen=True)
class Limits:
    """What one key may do: a minute, and at once. None is no limit."""

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None

    def __bool__(self) -> bool:
        return (self.requests, self.tokens, self.concurrent) != (None, None, None)


NO_LIMITS = Limits()


class Row(Protocol):
    """What is kept of a key: when requests and tokens are made up for, and how many are inside."""

    requests: float
    tokens: float

    @property
    def inside(self) -> int: ...

    def add(self, by: int) -> None:
        """So many more are inside."""


class Book(Protocol):
    """The rows of all keys."""

    def row(self, key: bytes) -> AbstractContextManager[Row]:
        """The row of a key, which nobody else changes meanwhile."""


@dataclass(frozen=True)
class Standing:
    """How a key stands with one limit: what is left of it now, and in how many seconds all is."""

    name: str
    limit: int
    left: int
    reset: float


class TooMany(RateLimited):
    """A limit of the key is reached. `reason` names it."""

    reason: str

    def __init__(self, message: str, reason: str, wait: float) -> None:
        super().__init__(message, retry_after=wait)
        self.reason = reason


class Quota:
    """Keeps every key within its limits."""

    __slots__ = ("_book", "_clock")

    def __init__(self, book: Book, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._clock = clock

    def standing(self, key: bytes, limits: Limits) -> list[Standing]:
        """How the key stands with the limits that it has."""
        if limits.requests is None and limits.tokens is None:
            return []
        now = self._clock()
        with self._book.row(key) as row:
            owed = _owed(row, limits)
        return [_standing(name, limit, due - now) for name, limit, due in owed]

    def enter(self, key: bytes, limits: Limits) -> "Visit":
        """One more request of the key. Raises where that is one too many."""
        visit = Visit(self._book, self._clock, key, limits)
        if not limits:
            return visit
        with self._book.row(key) as row:
            now = self._clock()
            _check(row, limits, now)
            if limits.requests is not None:
                row.requests = max(row.requests, now) + MINUTE / limits.requests
            if limits.concurrent is not None:
                row.add(+1)
        return visit


class Visit:
    """A request that was let in, under the limits of that moment."""

    __slots__ = ("_book", "_clock", "_key", "_limits")

    def __init__(self, book: Book, clock: Callable[[], float], key: bytes, limits: Limits) -> None:
        self._book = book
        self._clock = clock
        self._key = key
        self._limits = limits

    def leave(self, usage: Usage | None) -> None:
        """The request is over: what had to be read for it, and what was said, is paid for."""
        limits = self._limits
        if limits.concurrent is None and (limits.tokens is None or usage is None):
            return
        with self._book.row(self._key) as row:
            if limits.concurrent is not None:
                row.add(-1)
            if limits.tokens is not None and usage is not None:
                fresh = max(0, usage.input_tokens - usage.cached_tokens)
                cost = (fresh + usage.output_tokens) * MINUTE / limits.tokens
                row.tokens = max(row.tokens, self._clock()) + cost


class MemoryRow:
    """A row in this process alone."""

    __slots__ = ("inside", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0.0
        self.tokens = 0.0
        self.inside = 0

    def add(self, by: int) -> None:
        self.inside += by


class MemoryBook:
    """The rows of one process. Those that have nothing to tell any more are forgotten."""

    __slots__ = ("_clock", "_rows", "_tidy_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows: dict[bytes, MemoryRow] = {}
        self._clock = clock
        self._tidy_at = _IDLE_ROWS

    def __len__(self) -> int:
        return len(self._rows)

    @contextmanager
    def row(self, key: bytes) -> Iterator[MemoryRow]:
        found = self._rows.get(key)
        if found is None:
            self._tidy()
            found = self._rows[key] = MemoryRow()
        yield found

    def _tidy(self) -> None:
        if len(self._rows) < self._tidy_at:
            return
        now = self._clock()
        self._rows = {k: row for k, row in self._rows.items() if not is_idle(row, now)}
        self._tidy_at = max(_IDLE_ROWS, 2 * len(self._rows))


def is_idle(row: Row, now: float) -> bool:
    """Whether a row says no more than a new one would."""
    return row.requests <= now and row.tokens <= now and not row.inside


def _check(row: Row, limits: Limits, now: float) -> None:
    """Raises where a limit is reached: the one that takes longest to come back from."""
    waits = []
    if limits.concurrent is not None and row.inside >= limits.concurrent:
        waits.append((COME_BACK, "concurrent", f"{_many(limits.concurrent, 'requests')} at once"))
    for name, limit, due in _owed(row, limits):
        wait = _wait(limit, due - now)
        if wait > 0:
            waits.append((wait, name, f"{_many(limit, name)} a minute"))
    if waits:
        wait, reason, words = max(waits)
        raise TooMany(f"The limit of {words} for this key is reached.", reason, wait)


def _many(count: int, things: str) -> str:
    return f"{count} {things if count > 1 else things.removesuffix('s')}"


def _owed(row: Row, limits: Limits) -> list[tuple[str, int, float]]:
    """The limits a minute that there are, and when all that was asked will be made up for."""
    known = (("requests", limits.requests, row.requests), ("tokens", limits.tokens, row.tokens))
    return [(name, limit, due) for name, limit, due in known if limit is not None]


def _wait(limit: int, owed: float) -> float:
    """Seconds until there is room for one more."""
    one = MINUTE / limit
    wait = owed + one - MINUTE
    return wait if wait > one * _GRAIN else 0.0


def _standing(name: str, limit: int, owed: float) -> Standing:
    owed = max(0.0, owed)
    left = max(0, int(limit - owed * limit / MINUTE + _GRAIN))
    return Standing(name, limit, left, owed)
