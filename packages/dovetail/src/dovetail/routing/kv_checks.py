"""Whether the KV events of replicas arrive.

A publisher that is not reachable, another block size and a restarted engine cause no error in a
subscriber. After a prefill, the blocks of the prompt must therefore appear in the index.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from dovetail.engines.kv_cache import KvCacheInfo
from dovetail.routing.kv_endpoints import KvEventAddress, probe_publisher

#: When the index is searched for the blocks of a prompt, after its first token.
CHECK_DELAYS_SECONDS = (0.1, 0.4, 1.5, 3.0)
#: The time between two checks of a replica whose events arrive, and of others.
CHECK_INTERVAL_SECONDS = 30.0
RECHECK_INTERVAL_SECONDS = 2.0

_log = logging.getLogger(__name__)


class SubscribedReplica:
    """A replica and the state of its events.

    `info`: what its server reports.
    `address`: where it publishes; None if its events cannot be used.
    `is_confirmed`: blocks of a prompt have arrived.
    `has_failed`: they have not, so that the approximate index is used.
    """

    def __init__(self, replica: int, url: str | None, info: KvCacheInfo | None = None) -> None:
        self.replica = replica
        self.url = url
        self.info = info or KvCacheInfo()
        self.address: KvEventAddress | None = None
        self.is_confirmed = False
        self.has_failed = False
        self.check: asyncio.Task[None] | None = None
        self._next_check = 0.0

    @property
    def uses_events(self) -> bool:
        return self.address is not None and not self.has_failed

    @property
    def is_check_due(self) -> bool:
        return self.address is not None and self.check is None and monotonic() >= self._next_check

    def confirm(self) -> None:
        """Record that events have arrived."""
        self._next_check = monotonic() + CHECK_INTERVAL_SECONDS
        if not self.is_confirmed or self.has_failed:
            self.log("kv_events_received")
        self.is_confirmed, self.has_failed = True, False

    def reject(self, reason: str) -> None:
        """Use the approximate index for this replica, and log the reason."""
        self.address = None
        self.log("kv_events_rejected", reason)

    async def fail(self, resubscribe: Callable[[], Awaitable[None]]) -> None:
        """Subscribe again, because the engine may have been restarted; then report the failure."""
        self._next_check = monotonic() + RECHECK_INTERVAL_SECONDS
        address = self.address
        if address is None:
            return
        await resubscribe()
        if self.is_confirmed:
            self.is_confirmed = False  # the next check decides
        elif not self.has_failed:
            self.has_failed = True
            self.log("kv_events_missing", await describe_failure(address))

    def log(self, event: str, reason: str | None = None) -> None:
        fields: dict[str, object] = {"replica": self.replica, "url": self.url}
        if self.address is not None:
            fields["endpoint"] = self.address.events
        if reason is None:
            _log.info(event, extra={"fields": fields})
            return
        fields["reason"] = f"{reason}; the approximate index is used for this replica"
        _log.error(event, extra={"fields": fields})


async def describe_failure(address: KvEventAddress) -> str:
    """Return why no events arrive, as far as a connection shows it."""
    unreachable = await probe_publisher(address.events)
    if unreachable is not None:
        return f"{unreachable}; check --kv-events and the replica's --kv-events-config"
    return (
        f"{address.events} sent no KV events for a prompt that was prefilled; check that it "
        "belongs to this replica, that the replica enables KV events and prefix caching, and "
        "that --kv-block-size is its block size"
    )
