"""Budgets of keys and tenants: tokens per day, tokens and cost per month, in UTC.

The tokens of a response are known when it has finished. A request is therefore admitted as long as
a budget is not used up, and a budget can be exceeded by the requests that run at that time.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from dovetail.access.auth import Caller
from dovetail.access.key_file import Budgets
from dovetail.storage.faults import StoreError
from dovetail.telemetry.metrics import Metrics
from dovetail.usage.periods import day_name, month_name, next_day, next_month
from dovetail.usage.prices import NANOS
from dovetail.usage.store import Spent, SpentKey
from dovetail.usage.writer import UsageWriter
from dovetail_model import BudgetExceeded

WARNING_HEADER = "x-dovetail-budget-warning"
WARNING_SHARE = 0.8  # of a budget, from which on responses have the header


@dataclass(frozen=True)
class BudgetStatus:
    """The state of one budget.

    name: As in the key file: tokens-per-day, tokens-per-month, cost-per-month.
    scope: key or tenant.
    used, limit: Tokens, or cost.
    reset: When the next period begins, in seconds since the epoch.
    """

    name: str
    scope: str
    used: float
    limit: float
    reset: float

    @property
    def reset_text(self) -> str:
        return f"{datetime.fromtimestamp(self.reset, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def header_value(self) -> str:
        values = {"scope": self.scope, "used": f"{self.used:.15g}", "limit": f"{self.limit:.15g}"}
        words = [f"{name}={value}" for name, value in values.items()]
        return "; ".join([self.name, *words, f"reset={self.reset_text}"])


class BudgetGate:
    """Reject requests whose key or tenant has used up a budget, and warn before."""

    __slots__ = ("_clock", "_metrics", "_usage")

    def __init__(
        self,
        usage: UsageWriter | None,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._usage = usage
        self._metrics = metrics
        self._clock = clock

    async def check(self, caller: Caller, headers: list[tuple[str, str]]) -> list[BudgetStatus]:
        """Return the budgets that are nearly used up, and add them to `headers`.

        Raises `BudgetExceeded` if a budget is used up. While the store is unavailable, requests
        are admitted: its failure must not stop the service.
        """
        if not caller.budgets and not caller.tenant_budgets:
            return []
        warnings = [
            one for one in await self._read(caller) if one.used >= WARNING_SHARE * one.limit
        ]
        if warnings:
            headers.append((WARNING_HEADER, ", ".join(one.header_value() for one in warnings)))
        exceeded = [one for one in warnings if one.used >= one.limit]
        if exceeded:
            self._metrics.count_rate_limited("budget")
            raise _budget_error(max(exceeded, key=lambda one: one.reset), self._clock())
        return warnings

    async def _read(self, caller: Caller) -> list[BudgetStatus]:
        if self._usage is None:
            return []
        now = self._clock()
        limits = list(_limits(caller))
        keys = [
            SpentKey(
                day_name(now) if name.endswith("_day") else month_name(now),
                caller.tenant,
                caller.name if scope == "key" else None,
            )
            for scope, name, _ in limits
        ]
        try:
            spent = await self._usage.read_spent(keys)
        except StoreError:  # it is counted and logged
            return []
        return [
            BudgetStatus(
                name.replace("_", "-"),
                scope,
                _used(name, one),
                limit,
                next_day(now) if name.endswith("_day") else next_month(now),
            )
            for (scope, name, limit), one in zip(limits, spent, strict=True)
        ]


def _limits(caller: Caller) -> Iterator[tuple[str, str, float]]:
    """Yield the budgets of a caller: scope, name and limit."""
    for scope, budgets in (("key", caller.budgets), ("tenant", caller.tenant_budgets)):
        for one in fields(Budgets):
            limit = getattr(budgets, one.name)
            if limit is not None:
                yield scope, one.name, limit


def _used(name: str, spent: Spent) -> float:
    return spent.cost_nanos / NANOS if name.startswith("cost") else spent.tokens


def _budget_error(status: BudgetStatus, now: float) -> BudgetExceeded:
    owner = "This API key" if status.scope == "key" else "The tenant of this API key"
    error = BudgetExceeded(
        f"{owner} has used up its budget: {status.used:.15g} of {status.limit:.15g} "
        f"({status.name}). It resets at {status.reset_text}.",
        retry_after=max(1.0, status.reset - now),
    )
    error.reason = status.name.replace("-", "_")
    return error
