"""The way in for requests that generate: a good key, and its limits."""

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.access.auth import Keys
from dovetail.access.limits import Book, Quota, TooMany
from dovetail.http.exchange import Exchange
from dovetail.http.limit_headers import limit_headers
from dovetail.http.tracker import Account
from dovetail.telemetry.metrics import Metrics
from dovetail_protocols import Codec


class Gate:
    """Lets callers in as often as their keys allow, and tells them how they stand."""

    __slots__ = ("_keys", "_metrics", "_quota")

    def __init__(self, keys: Keys, book: Book, metrics: Metrics) -> None:
        self._keys = keys
        self._quota = Quota(book)
        self._metrics = metrics

    @contextmanager
    def visit(self, exchange: Exchange, account: Account, codec: Codec) -> Iterator[None]:
        """One request, for as long as the block lasts. Raises where it is one too many.

        A connection may outlive its key: that is looked at here again.
        """
        caller = self._keys.check(exchange.caller)
        try:
            visit = self._quota.enter(caller.key, caller.limits)
        except TooMany as refusal:
            self._metrics.count_rate_limited(refusal.reason)
            raise
        finally:
            standings = self._quota.standing(caller.key, caller.limits)
            exchange.extra += limit_headers(codec, standings)
        try:
            yield
        finally:
            visit.leave(account.usage)
