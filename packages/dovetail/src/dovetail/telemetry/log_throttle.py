"""Prevent unauthenticated clients from flooding the log."""

import asyncio
import logging

DEFAULT_MAX_LINES = 60  # per interval
DEFAULT_INTERVAL_SECONDS = 60.0
MAX_PEERS = 1024  # addresses whose suppressed lines are counted separately
MAX_REPORTED_PEERS = 16  # those with the most suppressed lines

_log = logging.getLogger(__name__)


class LogThrottle:
    """Allows a number of lines per interval, and then logs how many were suppressed.

    They are counted per address, so that one busy client does not hide others.
    """

    __slots__ = (
        "_count_field",
        "_event",
        "_interval_seconds",
        "_max_lines",
        "_max_peers",
        "_max_reported_peers",
        "_remaining",
        "_suppressed",
        "_timer",
    )

    def __init__(
        self,
        max_lines: int = DEFAULT_MAX_LINES,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        event: str = "request_logs_suppressed",
        count_field: str = "requests",
        max_peers: int = MAX_PEERS,
        max_reported_peers: int = MAX_REPORTED_PEERS,
    ) -> None:
        self._event = event
        self._count_field = count_field
        self._max_lines = max_lines
        self._max_peers = max_peers
        self._max_reported_peers = max_reported_peers
        self._interval_seconds = interval_seconds
        self._remaining = max_lines
        self._suppressed: dict[str | None, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, peer: str | None = None) -> bool:
        """Return whether the next line, about this address, may be logged."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._interval_seconds, self._report_suppressed
            )
        if self._remaining > 0:
            self._remaining -= 1
            return True
        suppressed = self._suppressed
        if peer not in suppressed and len(suppressed) >= self._max_peers:
            peer = None
        suppressed[peer] = suppressed.get(peer, 0) + 1
        return False

    def _report_suppressed(self) -> None:
        others = self._suppressed.pop(None, 0)
        loudest = sorted(self._suppressed.items(), key=lambda one: one[1], reverse=True)
        for peer, count in loudest[: self._max_reported_peers]:
            self._warn({self._count_field: count, "peer": peer})
        others += sum(count for _, count in loudest[self._max_reported_peers :])
        if others:
            self._warn({self._count_field: others})
        self._timer, self._remaining, self._suppressed = None, self._max_lines, {}

    def _warn(self, fields: dict[str, str | int | None]) -> None:
        _log.warning(self._event, extra={"fields": fields})
