"""Find output that repeats itself exactly, token for token.

Only length distinguishes a loop from a file of zeros, so the repeated part must be long: longer
than what models write on purpose. A loop that varies, such as a counter, is not found.
"""

from array import array

MAX_PERIOD_TOKENS = 2048
MIN_PERIODS = 4
#: How often the output is checked. A prime, so that checks do not keep step with the period.
CHECK_INTERVAL_TOKENS = 61

_ANCHOR_TOKENS = 16
_MAX_CANDIDATES = 32


class RepetitionDetector:
    """Looks for a repeated tail in a growing array of token ids.

    A check looks for earlier occurrences of the last tokens: their distances are the possible
    periods. The work of a check does not depend on the length of the output.

    `next_check`: the length at which the next check is due.
    """

    __slots__ = ("_ids", "_min_tokens", "next_check")

    def __init__(self, ids: "array[int]", min_tokens: int) -> None:
        self._ids = ids
        self._min_tokens = min_tokens
        self.next_check = min_tokens

    def find_period(self, factor: int = 1) -> int | None:
        """Return the period of the repeated tail, if there is one.

        `factor`: how many times as long as usual the repeated tail must be.
        """
        self.next_check = len(self._ids) + CHECK_INTERVAL_TOKENS
        min_tokens = self._min_tokens * factor
        for period in self._possible_periods():
            if self._repeats(period, max(min_tokens, MIN_PERIODS * period)):
                return period
        return None

    def _possible_periods(self) -> "list[int]":
        """Return the distances of earlier occurrences of the last tokens, the shortest first."""
        ids, size = self._ids, self._ids.itemsize
        # Reversed, because only the forward search of bytes takes linear time.
        window = ids[: -(MAX_PERIOD_TOKENS + _ANCHOR_TOKENS) - 1 : -1].tobytes()
        anchor, found, at = window[: _ANCHOR_TOKENS * size], [], 0
        for _ in range(_MAX_CANDIDATES):
            at = window.find(anchor, at + 1)
            if at < 0:
                break
            if at % size == 0:
                found.append(at // size)
        return found

    def _repeats(self, period: int, length: int) -> bool:
        """Return whether the last `length` tokens repeat with this period."""
        if len(self._ids) < length:
            return False
        tail = self._ids[-length:]
        return tail[period:] == tail[:-period]
