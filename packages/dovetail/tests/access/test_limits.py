"""Limits of a key with a simulated clock: requests and tokens per minute, concurrent requests.

All tests run with a store in memory and with one that processes share.
"""

import random
from pathlib import Path

import pytest

from dovetail.access.limits import (
    NO_LIMITS,
    LimitStore,
    MemoryLimitStore,
    RateLimiter,
    RateLimitExceeded,
    RateLimitLease,
    RateLimits,
)
from dovetail.access.shared_limits import SharedLimitStore, create_shared_limit_store
from dovetail_model import Usage

KEY, OTHER = bytes([1]) * 32, bytes([2]) * 32


class Clock:
    """A clock far in the future, so that no slot of a shared store is idle by the real clock."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


class Desk:
    """A rate limiter over a store, and the state that it reports."""

    def __init__(self, book: LimitStore) -> None:
        self.clock = Clock()
        self.quota = RateLimiter(book, self.clock)

    def enter(self, limits: RateLimits, key: bytes = KEY) -> RateLimitLease:
        return self.quota.acquire(key, limits)

    def refusal(self, limits: RateLimits, key: bytes = KEY) -> tuple[str, float]:
        with pytest.raises(RateLimitExceeded) as refused:
            self.enter(limits, key)
        assert refused.value.retry_after is not None
        return refused.value.reason, round(refused.value.retry_after, 3)

    def left(self, limits: RateLimits) -> list[tuple[str, int, int, float]]:
        found = self.quota.status(KEY, limits)
        return [(one.name, one.limit, one.remaining, round(one.reset_seconds, 3)) for one in found]


@pytest.fixture(params=["memory", "shared"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    if request.param == "memory":
        return Desk(MemoryLimitStore())
    create_shared_limit_store(tmp_path / "book", workers=3)
    return Desk(SharedLimitStore(tmp_path / "book", worker=1))


def test_burst_of_a_minute_is_allowed_then_requests_are_spaced(desk: Desk) -> None:
    limits = RateLimits(requests=6)
    for left in range(6, 0, -1):
        assert desk.left(limits)[0][2] == left
        desk.enter(limits)
    assert desk.left(limits) == [("requests", 6, 0, 60.0)]
    assert desk.refusal(limits) == ("requests", 10.0)
    desk.clock.now += 9.5
    assert desk.refusal(limits) == ("requests", 0.5)
    desk.clock.now += 0.5
    desk.enter(limits)
    assert desk.refusal(limits) == ("requests", 10.0)
    desk.clock.now += 3600
    assert desk.left(limits) == [("requests", 6, 6, 0.0)]


def test_request_after_retry_after_is_admitted(desk: Desk) -> None:
    """For any rate, and for any rounding of the wait."""
    for requests in (1, 7, 13, 60, 999, 86_401):
        limits, key = RateLimits(requests=requests), requests.to_bytes(32, "big")
        for _ in range(requests % 1000):
            desk.enter(limits, key)
        desk.clock.now += random.random()
        with pytest.raises(RateLimitExceeded) as refused:
            _enter_often(desk, limits, key)
        assert refused.value.retry_after is not None
        desk.clock.now += refused.value.retry_after
        desk.enter(limits, key)


def _enter_often(desk: Desk, limits: RateLimits, key: bytes) -> None:
    for _ in range(limits.requests or 0):
        desk.enter(limits, key)
    for _ in range(60):
        desk.enter(limits, key)


def test_keys_do_not_share_limits(desk: Desk) -> None:
    limits = RateLimits(requests=1)
    desk.enter(limits)
    desk.enter(limits, OTHER)
    assert desk.refusal(limits) == ("requests", 60.0)
    assert desk.refusal(limits, OTHER) == ("requests", 60.0)


def test_tokens_are_charged_afterwards(desk: Desk) -> None:
    limits = RateLimits(tokens=600)
    desk.enter(limits).release(Usage(input_tokens=500, cached_tokens=400, output_tokens=50))
    assert desk.left(limits) == [("tokens", 600, 450, 15.0)]
    first, second = desk.enter(limits), desk.enter(limits)
    first.release(Usage(input_tokens=500, output_tokens=250))  # overdrawn
    assert desk.refusal(limits) == ("tokens", 30.1)
    second.release(Usage(output_tokens=100))
    assert desk.refusal(limits) == ("tokens", 40.1)
    assert desk.left(limits)[0][2] == 0
    desk.clock.now += 40.1
    desk.enter(limits).release(None)  # no tokens were charged
    assert desk.left(limits)[0][2] == 1


@pytest.mark.parametrize("cached", [0, 7, 10, 10**6])
def test_cached_tokens_are_free(desk: Desk, cached: int) -> None:
    limits = RateLimits(tokens=60)
    usage = Usage(input_tokens=10, cached_tokens=cached, output_tokens=0)
    desk.enter(limits).release(usage)
    assert desk.left(limits)[0][2] == 60 - max(0, 10 - cached)


def test_concurrency_is_limited(desk: Desk) -> None:
    limits = RateLimits(concurrent=2)
    first = desk.enter(limits)
    desk.enter(limits)
    assert desk.refusal(limits) == ("concurrent", 2.0)
    first.release(None)
    desk.enter(limits)
    assert desk.refusal(limits) == ("concurrent", 2.0)


def test_rejected_requests_are_not_charged(desk: Desk) -> None:
    limits = RateLimits(requests=3, tokens=60, concurrent=1)
    visit = desk.enter(limits)
    for _ in range(10):
        assert desk.refusal(limits) == ("concurrent", 2.0)
    visit.release(Usage(output_tokens=90))
    assert desk.left(limits)[0][2] == 2
    for _ in range(10):
        assert desk.refusal(limits)[0] == "tokens"
    assert desk.left(limits)[0][2] == 2


def test_longest_wait_is_reported(desk: Desk) -> None:
    limits = RateLimits(requests=1, tokens=60)
    desk.enter(limits).release(Usage(output_tokens=240))
    assert desk.refusal(limits) == ("tokens", 181.0)


def test_limits_may_change_while_requests_run(desk: Desk) -> None:
    before, after = RateLimits(requests=5), RateLimits(requests=5, concurrent=1, tokens=60)
    visit = desk.enter(before)
    inside = desk.enter(after)
    visit.release(Usage(output_tokens=50))  # it was not counted at admission, and is not now
    assert desk.refusal(after)[0] == "concurrent"
    inside.release(None)
    desk.enter(after)


def test_without_limits_nothing_is_stored() -> None:
    book = MemoryLimitStore()
    quota = RateLimiter(book)
    quota.acquire(KEY, NO_LIMITS).release(Usage(output_tokens=5))
    assert quota.status(KEY, NO_LIMITS) == []
    assert quota.status(KEY, RateLimits(concurrent=2)) == []
    assert len(book) == 0


def test_rate_is_never_exceeded_over_time(desk: Desk) -> None:
    """The total exceeds the rate by at most the burst of one minute, for any arrival pattern."""
    random.seed(10)
    limits, begun, let_in = RateLimits(requests=30), desk.clock.now, 0
    for _ in range(3000):
        desk.clock.now += random.choice([0.0, 0.0, 0.01, 0.3, 4.0])
        try:
            desk.enter(limits)
            let_in += 1
        except RateLimitExceeded:
            pass
        assert let_in <= 30 + (desk.clock.now - begun) / 2 + 1e-6
    assert let_in > 1000


def test_idle_states_are_evicted() -> None:
    clock = Clock()
    book = MemoryLimitStore(clock)
    quota = RateLimiter(book, clock)
    for at in range(5000):
        quota.acquire(at.to_bytes(32, "big"), RateLimits(requests=60, concurrent=1)).release(None)
        clock.now += 1
    assert len(book) < 2500
    stays = quota.acquire(KEY, RateLimits(concurrent=1))
    for at in range(5000):
        quota.acquire(at.to_bytes(32, "big"), RateLimits(requests=60)).release(None)
        clock.now += 1
    with pytest.raises(RateLimitExceeded):
        quota.acquire(KEY, RateLimits(concurrent=1))
    stays.release(None)
