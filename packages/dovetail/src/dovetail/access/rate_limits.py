"""Rate limits of generation requests: revalidate the key and acquire a lease."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.access.auth import ApiKeys, Caller
from dovetail.access.limits import LimitStore, RateLimiter, RateLimitExceeded
from dovetail.telemetry.metrics import Metrics
from dovetail_model import Usage
from dovetail_protocols import Codec


class RateLimitGate:
    """Enforce the rate limits of keys and report their state in response headers."""

    __slots__ = ("_keys", "_limiter", "_metrics")

    def __init__(self, keys: ApiKeys, store: LimitStore, metrics: Metrics) -> None:
        self._keys = keys
        self._limiter = RateLimiter(store)
        self._metrics = metrics

    @contextmanager
    def lease(
        self,
        caller: Caller,
        codec: Codec,
        headers: list[tuple[str, str]],
        usage: Callable[[], Usage | None],
    ) -> Iterator[Caller]:
        """Hold a lease for one request while the block runs. Raises if a limit is reached.

        The state of the limits is added to `headers`; `usage` is called at the end for the tokens
        to charge. The key is validated again because a connection may outlive it; the caller
        with its current limits is returned.
        """
        caller = self._keys.revalidate(caller)
        try:
            lease = self._limiter.acquire(caller.key, caller.limits)
        except RateLimitExceeded as error:
            self._metrics.count_rate_limited(error.reason)
            raise
        finally:
            limits = self._limiter.status(caller.key, caller.limits)
            headers += codec.rate_limit_headers(limits, time.time())
        try:
            yield caller
        finally:
            lease.release(usage())
