"""Count and log the failures of a store, without flooding the log."""

import logging
import time
from collections.abc import Callable

from dovetail_model import InternalError

LOG_INTERVAL_SECONDS = 60.0  # between two warnings about one store

_log = logging.getLogger(__name__)


class StoreFaults:
    """Failure counters of one store.

    `failures`: failed operations.
    `lost`: writes that were abandoned.
    `late`: writes that were not stored yet when their response ended.
    `pending`: writes that are retried when the store is reachable again.
    `unavailable`: whether the last operation could not reach the store.
    `gap_at`: when a turn was last served without being announced to the store; 0 if never.
    """

    __slots__ = (
        "_clock",
        "_reported",
        "_reported_at",
        "failures",
        "gap_at",
        "late",
        "lost",
        "name",
        "pending",
        "unavailable",
    )

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.failures = 0
        self.gap_at = 0.0
        self.late = 0
        self.lost = 0
        self.pending = 0
        self.unavailable = False
        self._clock = clock
        self._reported = False
        self._reported_at: float | None = None

    def record_failure(self, error: Exception | None = None, *, unavailable: bool = True) -> None:
        """Record a failed operation. `unavailable=False`: the store responds but rejected it."""
        self.failures += 1
        self.unavailable = self.unavailable or unavailable
        now = self._clock()
        if error is None or (
            self._reported_at is not None and now - self._reported_at < LOG_INTERVAL_SECONDS
        ):
            return
        self._reported, self._reported_at = True, now
        self._warn("store_failed", error=str(error) or type(error).__name__, failures=self.failures)

    def record_success(self) -> None:
        """Record a successful operation."""
        if not self.unavailable:
            return
        self.unavailable = False
        if self._reported:
            self._reported = False
            counts = {"failures": self.failures, "pending": self.pending, "lost": self.lost}
            self._warn("store_recovered", **counts)

    def record_loss(self, error: BaseException | None = None) -> None:
        """Record a write that was abandoned."""
        self.lost += 1
        if self.lost.bit_count() == 1:  # log the first loss, then at powers of two
            fields = {} if error is None else {"error": str(error) or type(error).__name__}
            self._warn("store_write_lost", lost=self.lost, **fields)

    def record_late(self) -> None:
        """Record that a response ended before it was stored: a crash may lose it."""
        self.late += 1
        if self.late.bit_count() == 1:
            self._warn("store_write_delayed", late=self.late)

    def record_gap(self, now: float, reason: str) -> None:
        """Record that lookups may miss a turn that was served without being announced."""
        if now - self.gap_at >= LOG_INTERVAL_SECONDS:
            self._warn("ledger_gap_recorded", reason=reason)
        self.gap_at = now

    def _warn(self, event: str, **fields: str | int) -> None:
        _log.warning(event, extra={"fields": {"store": self.name, **fields}})


class StoreError(InternalError):
    """The store cannot be opened or read. The message names it."""
