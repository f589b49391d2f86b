"""Rate limits of a key: requests and tokens per minute, and concurrent requests.

The rate limits use the generic cell rate algorithm (GCRA): a key may use the allowance of a minute
at once, and the allowance refills continuously. The only state per key and limit is the time at
which the allowance will be full again. The cost of a response is known when it has finished, so
tokens are charged afterwards, and a key that has overdrawn its allowance must wait.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from dovetail_model import RateLimited, Usage
from dovetail_protocols import LimitStatus

MINUTE_SECONDS = 60.0
CONCURRENCY_RETRY_SECONDS = 2.0  # retry hint for too many concurrent requests
_MIN_EVICT_STATES = 1024
_ROUNDING_TOLERANCE = 1e-3  # of one request: rounding errors must not cost a request


@dataclass(frozen=True)
class RateLimits:
    """Limits of one key. None means no limit.

    requests: Requests per minute.
    tokens: Tokens per minute.
    concurrent: Concurrent requests.
    """

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None

    def __bool__(self) -> bool:
        return (self.requests, self.tokens, self.concurrent) != (None, None, None)


NO_LIMITS = RateLimits()


class LimitState(Protocol):
    """State of a key.

    requests, tokens: When the allowance will be full again, in the time of the limiter's clock.
    in_flight: Number of running requests.
    """

    requests: float
    tokens: float

    @property
    def in_flight(self) -> int: ...

    def add_in_flight(self, by: int) -> None:
        """Change the number of running requests."""


class LimitStore(Protocol):
    """Storage for the states of all keys."""

    def lock(self, key: bytes) -> AbstractContextManager[LimitState]:
        """Hold exclusive access to the state of a key while the block runs."""


class RateLimitExceeded(RateLimited):
    """A limit of the key is reached.

    reason: Name of the limit.
    """

    reason: str

    def __init__(self, message: str, reason: str, wait: float) -> None:
        super().__init__(message, retry_after=wait)
        self.reason = reason


class RateLimiter:
    """Enforce the limits of every key."""

    __slots__ = ("_clock", "_store")

    def __init__(self, store: LimitStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock

    def status(self, key: bytes, limits: RateLimits) -> list[LimitStatus]:
        """Return the current state of the limits of a key."""
        if limits.requests is None and limits.tokens is None:
            return []
        now = self._clock()
        with self._store.lock(key) as state:
            minute_limits = _minute_limits(state, limits)
        return [_limit_status(name, limit, due - now) for name, limit, due in minute_limits]

    def acquire(self, key: bytes, limits: RateLimits) -> "RateLimitLease":
        """Admit a request of the key. Raises `RateLimitExceeded` if that would exceed a limit."""
        lease = RateLimitLease(self._store, self._clock, key, limits)
        if not limits:
            return lease
        with self._store.lock(key) as state:
            now = self._clock()
            _check_limits(state, limits, now)
            if limits.requests is not None:
                state.requests = max(state.requests, now) + MINUTE_SECONDS / limits.requests
            if limits.concurrent is not None:
                state.add_in_flight(+1)
        return lease


class RateLimitLease:
    """The share of an admitted request in the limits of its key, as they were at admission."""

    __slots__ = ("_clock", "_key", "_limits", "_store")

    def __init__(
        self, store: LimitStore, clock: Callable[[], float], key: bytes, limits: RateLimits
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._limits = limits

    def release(self, usage: Usage | None) -> None:
        """Finish the request and charge its tokens: uncached input and output."""
        limits = self._limits
        if limits.concurrent is None and (limits.tokens is None or usage is None):
            return
        with self._store.lock(self._key) as state:
            if limits.concurrent is not None:
                state.add_in_flight(-1)
            if limits.tokens is not None and usage is not None:
                fresh = max(0, usage.input_tokens - usage.cached_tokens)
                cost = (fresh + usage.output_tokens) * MINUTE_SECONDS / limits.tokens
                state.tokens = max(state.tokens, self._clock()) + cost


class MemoryLimitState:
    """State of a key, in the memory of this process."""

    __slots__ = ("in_flight", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0.0
        self.tokens = 0.0
        self.in_flight = 0

    def add_in_flight(self, by: int) -> None:
        self.in_flight += by


class MemoryLimitStore:
    """States in the memory of this process. Idle states are evicted."""

    __slots__ = ("_clock", "_evict_at", "_states")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._states: dict[bytes, MemoryLimitState] = {}
        self._clock = clock
        self._evict_at = _MIN_EVICT_STATES

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def lock(self, key: bytes) -> Iterator[MemoryLimitState]:
        state = self._states.get(key)
        if state is None:
            self._evict_idle()
            state = self._states[key] = MemoryLimitState()
        yield state

    def _evict_idle(self) -> None:
        if len(self._states) < self._evict_at:
            return
        now = self._clock()
        self._states = {k: state for k, state in self._states.items() if not is_idle(state, now)}
        self._evict_at = max(_MIN_EVICT_STATES, 2 * len(self._states))


def is_idle(state: LimitState, now: float) -> bool:
    """Return whether a state is equivalent to a new one."""
    return state.requests <= now and state.tokens <= now and not state.in_flight


def _check_limits(state: LimitState, limits: RateLimits, now: float) -> None:
    """Raise for the reached limit with the longest wait, if any."""
    waits = []
    if limits.concurrent is not None and state.in_flight >= limits.concurrent:
        waits.append(
            (
                CONCURRENCY_RETRY_SECONDS,
                "concurrent",
                _format_count(limits.concurrent, "concurrent requests"),
            )
        )
    for name, limit, due in _minute_limits(state, limits):
        wait = _wait_seconds(limit, due - now)
        if wait > 0:
            waits.append((wait, name, f"{_format_count(limit, name)} per minute"))
    if waits:
        wait, reason, description = max(waits)
        raise RateLimitExceeded(
            f"This API key has reached its limit of {description}.", reason, wait
        )


def _format_count(count: int, things: str) -> str:
    return f"{count} {things if count > 1 else things.removesuffix('s')}"


def _minute_limits(state: LimitState, limits: RateLimits) -> list[tuple[str, int, float]]:
    """Return the limits per minute: name, limit, and when the allowance will be full again."""
    known = (("requests", limits.requests, state.requests), ("tokens", limits.tokens, state.tokens))
    return [(name, limit, due) for name, limit, due in known if limit is not None]


def _wait_seconds(limit: int, owed: float) -> float:
    """Return the seconds until the allowance covers one more request or token."""
    one = MINUTE_SECONDS / limit
    wait = owed + one - MINUTE_SECONDS
    return wait if wait > one * _ROUNDING_TOLERANCE else 0.0


def _limit_status(name: str, limit: int, owed: float) -> LimitStatus:
    owed = max(0.0, owed)
    left = max(0, int(limit - owed * limit / MINUTE_SECONDS + _ROUNDING_TOLERANCE))
    return LimitStatus(name, limit, left, owed)
