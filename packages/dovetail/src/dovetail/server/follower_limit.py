"""A limit on the streams of other processes that one process relays to clients."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.http.responses.background import RETRY_AFTER_SECONDS
from dovetail_model import RateLimited

MAX_FOLLOWED_STREAMS = 256
MAX_FOLLOWED_PER_TENANT = 64


class FollowerLimit:
    """Counts the relayed streams of each tenant."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._by_tenant: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Raise `RateLimited` if there are too many streams."""
        if (
            self._by_tenant.total() >= self._max_streams
            or self._by_tenant[tenant] >= MAX_FOLLOWED_PER_TENANT
        ):
            raise RateLimited(
                "Too many background streams are being followed; retry later.",
                retry_after=RETRY_AFTER_SECONDS,
            )

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count a stream while the block runs."""
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
            self._by_tenant += Counter()  # drop zero counts
