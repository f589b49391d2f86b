"""Keeps those whom nobody knows from filling the log."""

import asyncio
import logging

LINES = 60  # that refused strangers may leave in the log, in each span of time
SPAN = 60.0  # seconds

_log = logging.getLogger(__name__)


class Hush:
    """Lets so many lines through in a minute, and tells in one how many more there were."""

    __slots__ = ("_event", "_left", "_lines", "_missed", "_span", "_timer")

    def __init__(
        self, lines: int = LINES, span: float = SPAN, event: str = "refusals_not_logged"
    ) -> None:
        self._event = event
        self._lines = lines
        self._span = span
        self._left = lines
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None

    def speaks(self) -> bool:
        """Whether the next line may be written."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._span, self._renew)
        if self._left > 0:
            self._left -= 1
            return True
        self._missed += 1
        return False

    def _renew(self) -> None:
        if self._missed:
            _log.warning(self._event, extra={"fields": {"requests": self._missed}})
        self._timer, self._left, self._missed = None, self._lines, 0
