"""Keeps those whom nobody knows from filling the log."""

import asyncio
import logging

LINES = 60  # that refused strangers may leave in the log, in each span of time
SPAN = 60.0  # seconds
MOST_PEERS = 1024  # addresses whose missed lines are counted apart
MOST_TOLD = 16  # of them, that have a line of their own: those with most

_log = logging.getLogger(__name__)


class Hush:
    """Lets so many lines through in a minute, and tells afterwards how many more there were.

    They are told by the address that they came from, so that who is loud does not hide others.
    """

    __slots__ = ("_event", "_left", "_lines", "_missed", "_span", "_timer", "_what")

    def __init__(
        self,
        lines: int = LINES,
        span: float = SPAN,
        event: str = "refusals_not_logged",
        what: str = "requests",
    ) -> None:
        self._event = event
        self._what = what
        self._lines = lines
        self._span = span
        self._left = lines
        self._missed: dict[str | None, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def speaks(self, peer: str | None = None) -> bool:
        """Whether the next line may be written; it would be about this address."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._span, self._renew)
        if self._left > 0:
            self._left -= 1
            return True
        missed = self._missed
        if peer not in missed and len(missed) >= MOST_PEERS:
            peer = None
        missed[peer] = missed.get(peer, 0) + 1
        return False

    def _renew(self) -> None:
        others = self._missed.pop(None, 0)
        loudest = sorted(self._missed.items(), key=lambda one: one[1], reverse=True)
        for peer, count in loudest[:MOST_TOLD]:
            self._tell({self._what: count, "peer": peer})
        others += sum(count for _, count in loudest[MOST_TOLD:])
        if others:
            self._tell({self._what: others})
        self._timer, self._left, self._missed = None, self._lines, {}

    def _tell(self, fields: dict[str, str | int | None]) -> None:
        _log.warning(self._event, extra={"fields": fields})
