"""What a store could not do: counted for the numbers, and told in the log without flooding it."""

import logging
import time
from collections.abc import Callable

from dovetail_model import InternalError

LOG_INTERVAL_SECONDS = 60.0  # seconds in which a store that fails is told of once

_log = logging.getLogger(__name__)


class StoreFaults:
    """The faults of one store, which `what` names.

    `failed` counts questions without an answer, `lost` what was not kept, and `waiting` says what
    is kept as soon as the store is there again. `away` is whether it was not, when last asked.
    """

    __slots__ = (
        "_clock",
        "_reported",
        "_reported_at",
        "failures",
        "lost",
        "name",
        "pending",
        "unavailable",
    )

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.failures = 0
        self.lost = 0
        self.pending = 0
        self.unavailable = False
        self._clock = clock
        self._reported = False
        self._reported_at: float | None = None

    def record_failure(self, error: Exception | None = None, *, unavailable: bool = True) -> None:
        """A question had no answer. A store that is not `away` refuses some, and answers others."""
        self.failures += 1
        self.unavailable = self.unavailable or unavailable
        now = self._clock()
        if error is None or (
            self._reported_at is not None and now - self._reported_at < LOG_INTERVAL_SECONDS
        ):
            return
        self._reported, self._reported_at = True, now
        self._warn("store_failed", error=str(error) or type(error).__name__, failed=self.failures)

    def record_success(self) -> None:
        """A question had one."""
        if not self.unavailable:
            return
        self.unavailable = False
        if self._reported:
            self._reported = False
            counts = {"failed": self.failures, "waiting": self.pending, "lost": self.lost}
            self._warn("store_back", **counts)

    def record_loss(self, error: BaseException | None = None) -> None:
        """Something could not be kept, and will not be."""
        self.lost += 1
        if self.lost.bit_count() == 1:  # the first, and then ever more seldom
            told = {} if error is None else {"error": str(error) or type(error).__name__}
            self._warn("store_lost", lost=self.lost, **told)

    def _warn(self, event: str, **fields: str | int) -> None:
        _log.warning(event, extra={"fields": {"store": self.name, **fields}})


class StoreError(InternalError):
    """The store cannot be opened or read. The message names it."""
