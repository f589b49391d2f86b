"""Keeps those whom nobody knows from filling the log."""

import asyncio
import logging

DEFAULT_MAX_LINES = 60  # that refused strangers may leave in the log, in each span of time
DEFAULT_INTERVAL_SECONDS = 60.0  # seconds
MAX_PEERS = 1024  # addresses whose missed lines are counted apart
MAX_REPORTED_PEERS = 16  # of them, that have a line of their own: those with most

_log = logging.getLogger(__name__)


class LogThrottle:
    """Lets so many lines through in a minute, and tells afterwards how many more there were.

    They are told by the address that they came from, so that who is loud does not hide others.
    """

    __slots__ = (
        "_count_field",
        "_event",
        "_interval_seconds",
        "_max_lines",
        "_remaining",
        "_suppressed",
        "_timer",
    )

    def __init__(
        self,
        max_lines: int = DEFAULT_MAX_LINES,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        event: str = "refusals_not_logged",
        count_field: str = "requests",
    ) -> None:
        self._event = event
        self._count_field = count_field
        self._max_lines = max_lines
        self._interval_seconds = interval_seconds
        self._remaining = max_lines
        self._suppressed: dict[str | None, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, peer: str | None = None) -> bool:
        """Whether the next line may be written; it would be about this address."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._interval_seconds, self._report_suppressed
            )
        if self._remaining > 0:
            self._remaining -= 1
            return True
        missed = self._suppressed
        if peer not in missed and len(missed) >= MAX_PEERS:
            peer = None
        missed[peer] = missed.get(peer, 0) + 1
        return False

    def _report_suppressed(self) -> None:
        others = self._suppressed.pop(None, 0)
        loudest = sorted(self._suppressed.items(), key=lambda one: one[1], reverse=True)
        for peer, count in loudest[:MAX_REPORTED_PEERS]:
            self._warn({self._count_field: count, "peer": peer})
        others += sum(count for _, count in loudest[MAX_REPORTED_PEERS:])
        if others:
            self._warn({self._count_field: others})
        self._timer, self._remaining, self._suppressed = None, self._max_lines, {}

    def _warn(self, fields: dict[str, str | int | None]) -> None:
        _log.warning(self._event, extra={"fields": fields})
