"""What a store could not do: counted for the numbers, and told in the log without flooding it."""

import logging
import time
from collections.abc import Callable

SPAN = 60.0  # seconds in which a store that fails is told of once

_log = logging.getLogger(__name__)


class Faults:
    """The faults of one store, which `what` names.

    `failed` counts questions without an answer, `lost` what was not kept, and `waiting` says what
    is kept as soon as the store is there again. `away` is whether it was not, when last asked.
    """

    __slots__ = ("_clock", "_told", "_told_at", "away", "failed", "lost", "waiting", "what")

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.failed = 0
        self.lost = 0
        self.waiting = 0
        self.away = False
        self._clock = clock
        self._told = False
        self._told_at: float | None = None

    def unanswered(self, error: Exception | None = None, *, away: bool = True) -> None:
        """A question had no answer. A store that is not `away` refuses some, and answers others."""
        self.failed += 1
        self.away = self.away or away
        now = self._clock()
        if error is None or (self._told_at is not None and now - self._told_at < SPAN):
            return
        self._told, self._told_at = True, now
        self._tell("store_failed", error=str(error) or type(error).__name__, failed=self.failed)

    def answered(self) -> None:
        """A question had one."""
        if not self.away:
            return
        self.away = False
        if self._told:
            self._told = False
            counts = {"failed": self.failed, "waiting": self.waiting, "lost": self.lost}
            self._tell("store_back", **counts)

    def lose(self, error: BaseException | None = None) -> None:
        """Something could not be kept, and will not be."""
        self.lost += 1
        if self.lost.bit_count() == 1:  # the first, and then ever more seldom
            told = {} if error is None else {"error": str(error) or type(error).__name__}
            self._tell("store_lost", lost=self.lost, **told)

    def _tell(self, event: str, **fields: str | int) -> None:
        _log.warning(event, extra={"fields": {"store": self.what, **fields}})
