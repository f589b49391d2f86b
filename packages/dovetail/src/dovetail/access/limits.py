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
from dovetail_protocols import LimitStatus

MINUTE_SECONDS = 60.0
CONCURRENCY_RETRY_SECONDS = 2.0  # seconds after which one who had too many at once may try again
_MIN_EVICT_STATES = 1024
_ROUNDING_TOLERANCE = 1e-3  # of one request: sums of small times must not make it one fewer


@dataclass(frozen=True)
class RateLimits:
    """What one key may do: a minute, and at once. None is no limit."""

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None

    def __bool__(self) -> bool:
        return (self.requests, self.tokens, self.concurrent) != (None, None, None)


NO_LIMITS = RateLimits()


class LimitState(Protocol):
    """What is kept of a key: when requests and tokens are made up for, and how many are inside."""

    requests: float
    tokens: float

    @property
    def in_flight(self) -> int: ...

    def add_in_flight(self, by: int) -> None:
        """So many more are inside."""


class LimitStore(Protocol):
    """The rows of all keys."""

    def lock(self, key: bytes) -> AbstractContextManager[LimitState]:
        """The row of a key, which nobody else changes meanwhile."""


class RateLimitExceeded(RateLimited):
    """A limit of the key is reached. `reason` names it."""

    reason: str

    def __init__(self, message: str, reason: str, wait: float) -> None:
        super().__init__(message, retry_after=wait)
        self.reason = reason


class RateLimiter:
    """Keeps every key within its limits."""

    __slots__ = ("_clock", "_store")

    def __init__(self, store: LimitStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock

    def status(self, key: bytes, limits: RateLimits) -> list[LimitStatus]:
        """How the key stands with the limits that it has."""
        if limits.requests is None and limits.tokens is None:
            return []
        now = self._clock()
        with self._store.lock(key) as row:
            owed = _minute_limits(row, limits)
        return [_limit_status(name, limit, due - now) for name, limit, due in owed]

    def acquire(self, key: bytes, limits: RateLimits) -> "RateLimitLease":
        """One more request of the key. Raises where that is one too many."""
        visit = RateLimitLease(self._store, self._clock, key, limits)
        if not limits:
            return visit
        with self._store.lock(key) as row:
            now = self._clock()
            _check_limits(row, limits, now)
            if limits.requests is not None:
                row.requests = max(row.requests, now) + MINUTE_SECONDS / limits.requests
            if limits.concurrent is not None:
                row.add_in_flight(+1)
        return visit


class RateLimitLease:
    """A request that was let in, under the limits of that moment."""

    __slots__ = ("_clock", "_key", "_limits", "_store")

    def __init__(
        self, store: LimitStore, clock: Callable[[], float], key: bytes, limits: RateLimits
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._limits = limits

    def release(self, usage: Usage | None) -> None:
        """The request is over: what had to be read for it, and what was said, is paid for."""
        limits = self._limits
        if limits.concurrent is None and (limits.tokens is None or usage is None):
            return
        with self._store.lock(self._key) as row:
            if limits.concurrent is not None:
                row.add_in_flight(-1)
            if limits.tokens is not None and usage is not None:
                fresh = max(0, usage.input_tokens - usage.cached_tokens)
                cost = (fresh + usage.output_tokens) * MINUTE_SECONDS / limits.tokens
                row.tokens = max(row.tokens, self._clock()) + cost


class MemoryLimitState:
    """A row in this process alone."""

    __slots__ = ("in_flight", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0.0
        self.tokens = 0.0
        self.in_flight = 0

    def add_in_flight(self, by: int) -> None:
        self.in_flight += by


class MemoryLimitStore:
    """The rows of one process. Those that have nothing to tell any more are forgotten."""

    __slots__ = ("_clock", "_evict_at", "_states")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._states: dict[bytes, MemoryLimitState] = {}
        self._clock = clock
        self._evict_at = _MIN_EVICT_STATES

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def lock(self, key: bytes) -> Iterator[MemoryLimitState]:
        found = self._states.get(key)
        if found is None:
            self._evict_idle()
            found = self._states[key] = MemoryLimitState()
        yield found

    def _evict_idle(self) -> None:
        if len(self._states) < self._evict_at:
            return
        now = self._clock()
        self._states = {k: row for k, row in self._states.items() if not is_idle(row, now)}
        self._evict_at = max(_MIN_EVICT_STATES, 2 * len(self._states))


def is_idle(row: LimitState, now: float) -> bool:
    """Whether a row says no more than a new one would."""
    return row.requests <= now and row.tokens <= now and not row.in_flight


def _check_limits(row: LimitState, limits: RateLimits, now: float) -> None:
    """Raises where a limit is reached: the one that takes longest to come back from."""
    waits = []
    if limits.concurrent is not None and row.in_flight >= limits.concurrent:
        waits.append(
            (
                CONCURRENCY_RETRY_SECONDS,
                "concurrent",
                f"{_format_count(limits.concurrent, 'requests')} at once",
            )
        )
    for name, limit, due in _minute_limits(row, limits):
        wait = _wait_seconds(limit, due - now)
        if wait > 0:
            waits.append((wait, name, f"{_format_count(limit, name)} a minute"))
    if waits:
        wait, reason, words = max(waits)
        raise RateLimitExceeded(f"The limit of {words} for this key is reached.", reason, wait)


def _format_count(count: int, things: str) -> str:
    return f"{count} {things if count > 1 else things.removesuffix('s')}"


def _minute_limits(row: LimitState, limits: RateLimits) -> list[tuple[str, int, float]]:
    """The limits a minute that there are, and when all that was asked will be made up for."""
    known = (("requests", limits.requests, row.requests), ("tokens", limits.tokens, row.tokens))
    return [(name, limit, due) for name, limit, due in known if limit is not None]


def _wait_seconds(limit: int, owed: float) -> float:
    """Seconds until there is room for one more."""
    one = MINUTE_SECONDS / limit
    wait = owed + one - MINUTE_SECONDS
    return wait if wait > one * _ROUNDING_TOLERANCE else 0.0


def _limit_status(name: str, limit: int, owed: float) -> LimitStatus:
    owed = max(0.0, owed)
    left = max(0, int(limit - owed * limit / MINUTE_SECONDS + _ROUNDING_TOLERANCE))
    return LimitStatus(name, limit, left, owed)
