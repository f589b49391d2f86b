"""The interface of usage stores.

A request is announced when its model is known, and counted when it has finished. One that was only
announced and whose process does not live was interrupted by a crash.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail.storage.faults import StoreFaults
from dovetail.usage.counts import DAY_SECONDS, UsageCounts, UsageKey
from dovetail.usage.periods import day_name, month_name

HEARTBEAT_SECONDS = 10.0
#: A process whose last heartbeat is older than this counts as crashed. If it was only stalled,
#: finishing its requests corrects the counts.
STALE_SECONDS = 45.0
DEFAULT_MAX_AGE_SECONDS = 400 * float(DAY_SECONDS)
DEFAULT_MAX_SESSIONS = 1000
SPENT_MAX_AGE_SECONDS = 40 * DAY_SECONDS  # longer than any budget period


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that has started.

    number: Unique in its process.
    hour: The hour in which it began, to which all its counts belong.
    """

    number: int
    hour: int
    key: UsageKey


class FinishedRequest(msgspec.Struct, frozen=True):
    """A finished request.

    announced: Whether an earlier batch announced it.
    """

    request: OpenRequest
    counts: UsageCounts
    announced: bool = False


class UsageBatch(msgspec.Struct, frozen=True):
    """Changes that are applied together, and once, even if the batch is sent again."""

    process: str
    number: int
    opened: tuple[OpenRequest, ...] = ()
    finished: tuple[FinishedRequest, ...] = ()


class SpentKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A period in which the tokens of a tenant, or of one key of it, are counted for budgets.

    period: A UTC day (2026-11-18) or month (2026-11).
    key: Name of the key; None for the whole tenant.
    """

    period: str
    tenant: str
    key: str | None = None


class Spent(msgspec.Struct, frozen=True):
    """What a budget counts."""

    tokens: int = 0
    cost_nanos: int = 0


class UsageQuery(msgspec.Struct, frozen=True):
    """Which usage to read.

    by: Dimensions to group by: those of `UsageKey`, `day` and `hour`.
    since, until: Hours; `until` is exclusive.
    """

    by: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None


class UsageRow(msgspec.Struct, frozen=True):
    """The sums of one group.

    group: The values of the dimensions of the query, in their order; times as integers.
    running: Requests that have started and not finished.
    """

    group: tuple[str | int, ...]
    counts: UsageCounts = UsageCounts()
    running: int = 0


class UsageStore(Protocol):
    """Stores usage for all processes of a server, or of several servers."""

    @property
    def faults(self) -> StoreFaults:
        """The failures of the store."""

    async def apply(self, batch: UsageBatch) -> None:
        """Apply a batch. Raises StoreError if it may not have been applied: send it again."""

    async def maintain(self, process: str | None) -> None:
        """Note that a process lives, count the requests of crashed ones, delete expired data."""

    async def read(self, query: UsageQuery) -> list[UsageRow]:
        """Return the sums of each group. Raises StoreError if the store is unavailable."""

    async def read_spent(self, keys: Sequence[SpentKey]) -> list[Spent]:
        """Return what was spent in each period. Raises StoreError if it is unavailable."""

    async def close(self) -> None: ...


def sum_by_hour(finished: Sequence[FinishedRequest]) -> dict[tuple[int, UsageKey], UsageCounts]:
    """Add up finished requests by hour and key, so that a batch changes each row once."""
    sums: dict[tuple[int, UsageKey], UsageCounts] = {}
    for one in finished:
        at = (one.request.hour, one.request.key)
        sums[at] = sums[at] + one.counts if at in sums else one.counts
    return sums


def sum_spent(finished: Sequence[FinishedRequest]) -> dict[SpentKey, Spent]:
    """Add up what finished requests charge to the budget periods of their keys and tenants."""
    sums: dict[SpentKey, Spent] = {}
    for one in finished:
        tokens, cost = one.counts.budget_tokens, one.counts.cost_nanos
        if not tokens and not cost:
            continue
        hour, key = one.request.hour, one.request.key
        for period in (day_name(hour), month_name(hour)):
            for name in (None, key.key):
                at = SpentKey(period, key.tenant, name)
                before = sums.get(at, Spent())
                sums[at] = Spent(before.tokens + tokens, before.cost_nanos + cost)
    return sums
