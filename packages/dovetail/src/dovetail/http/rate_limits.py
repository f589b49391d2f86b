"""The way in for requests that generate: a good key, and its limits."""

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import LimitStore, RateLimiter, RateLimitExceeded
from dovetail.http.exchange import Exchange
from dovetail.http.limit_headers import limit_headers
from dovetail.http.tracker import Account
from dovetail.telemetry.metrics import Metrics
from dovetail_protocols import Codec


class Gate:
    """Lets callers in as often as their keys allow, and tells them how they stand."""

    __slots__ = ("_keys", "_metrics", "_quota")

    def __init__(self, keys: ApiKeys, book: LimitStore, metrics: Metrics) -> None:
        self._keys = keys
        self._quota = RateLimiter(book)
        self._metrics = metrics

    @contextmanager
    def visit(self, exchange: Exchange, account: Account, codec: Codec) -> Iterator[None]:
        """One request, for as long as the block lasts. Raises where it is one too many.

        A connection may outlive its key: that is looked at here again.
        """
        caller = self._keys.revalidate(exchange.caller)
        try:
            visit = self._quota.acquire(caller.key, caller.limits)
        except RateLimitExceeded as refusal:
            self._metrics.count_rate_limited(refusal.reason)
            raise
        finally:
            standings = self._quota.status(caller.key, caller.limits)
            exchange.extra += limit_headers(codec, standings)
        try:
            yield
        finally:
            visit.release(account.usage)
