"""The way in for requests that generate: a good key, and its limits."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import LimitStore, RateLimiter, RateLimitExceeded
from dovetail.http.exchange import ApiExchange
from dovetail.http.tracker import RequestTracker
from dovetail.telemetry.metrics import Metrics
from dovetail_protocols import Codec


class RateLimitGate:
    """Lets callers in as often as their keys allow, and tells them how they stand."""

    __slots__ = ("_keys", "_limiter", "_metrics")

    def __init__(self, keys: ApiKeys, store: LimitStore, metrics: Metrics) -> None:
        self._keys = keys
        self._limiter = RateLimiter(store)
        self._metrics = metrics

    @contextmanager
    def lease(self, exchange: ApiExchange, tracker: RequestTracker, codec: Codec) -> Iterator[None]:
        """One request, for as long as the block lasts. Raises where it is one too many.

        A connection may outlive its key: that is looked at here again.
        """
        caller = self._keys.revalidate(exchange.caller)
        try:
            visit = self._limiter.acquire(caller.key, caller.limits)
        except RateLimitExceeded as refusal:
            self._metrics.count_rate_limited(refusal.reason)
            raise
        finally:
            limits = self._limiter.status(caller.key, caller.limits)
            exchange.extra_headers += codec.rate_limit_headers(limits, time.time())
        try:
            yield
        finally:
            visit.release(tracker.usage)
