"""The way in for requests that generate: a good key, and its limits."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import LimitStatus, LimitStore, RateLimiter, RateLimitExceeded
from dovetail.http.exchange import ApiExchange
from dovetail.http.tracker import RequestTracker
from dovetail.telemetry.metrics import Metrics
from dovetail_protocols import MESSAGES, Codec


def limit_headers(
    codec: Codec, statuses: Iterable[LimitStatus], now: datetime | None = None
) -> list[tuple[str, str]]:
    """What a limit is, what is left of it, and when all of it will be there again."""
    moment = now or datetime.now(UTC)
    found: list[tuple[str, str]] = []
    for one in statuses:
        values = {"limit": str(one.limit), "remaining": str(one.remaining)}
        if codec is MESSAGES:
            values["reset"] = f"{moment + timedelta(seconds=one.reset_seconds):%Y-%m-%dT%H:%M:%SZ}"
            found += [(f"anthropic-ratelimit-{one.name}-{k}", v) for k, v in values.items()]
        else:
            values["reset"] = _format_duration(one.reset_seconds)
            found += [(f"x-ratelimit-{k}-{one.name}", v) for k, v in values.items()]
    return found


def _format_duration(seconds: float) -> str:
    """A time to wait as OpenAI writes it: 120ms, 6.5s, 1m30s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


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
            standings = self._limiter.status(caller.key, caller.limits)
            exchange.extra_headers += limit_headers(codec, standings)
        try:
            yield
        finally:
            visit.release(tracker.usage)
