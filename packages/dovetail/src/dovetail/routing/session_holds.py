"""Predict for how long to hold the place of a session between two turns."""

from dovetail.routing.prefill_rate import PrefillRate
from dovetail.routing.session_turns import SchedulingLimits, TurnEnd
from dovetail.routing.tool_times import ToolTimes

#: A place is held this much longer than the quantile of the expected return.
HOLD_QUANTILE, HOLD_MARGIN_FACTOR, HOLD_MARGIN_SECONDS = 0.95, 1.5, 1.0
#: The average time of a turn from its admission to its end: first assumed, then measured.
ASSUMED_TURN_SECONDS, MIN_TURN_SECONDS, TURN_SMOOTHING = 3.0, 0.01, 0.05
#: How much the load of prefill counts for the time for which places are held.
LOAD_FACTOR = 1.5


class HoldTimes:
    """Weighs a place that is held, and lost for others, against prefilling its session again."""

    def __init__(
        self, limits: SchedulingLimits, tool_times: ToolTimes, prefill_rate: PrefillRate
    ) -> None:
        self._limits = limits
        self._tool_times = tool_times
        self._prefill_rate = prefill_rate
        self._turn_seconds = ASSUMED_TURN_SECONDS

    def observe_turn(self, seconds: float) -> None:
        """Record the time of a turn from its admission to its end."""
        self._turn_seconds += TURN_SMOOTHING * (seconds - self._turn_seconds)
        self._turn_seconds = max(self._turn_seconds, MIN_TURN_SECONDS)

    def predict(self, end: TurnEnd, capacity: int, now: float) -> tuple[float, float | None]:
        """Return how long to hold the place after a turn, and the predicted time of the next turn.

        `capacity`: the tokens of the KV cache.
        """
        if end.waits_for_user:
            return 0.0, None
        longest = self._longest_hold(end.context_tokens, capacity)
        if end.return_seconds is not None:
            late = end.return_seconds > longest
            return (0.0 if late else end.return_seconds + HOLD_MARGIN_SECONDS), end.return_seconds
        median = self._tool_times.quantile(end.tool_keys, 0.5, now)
        if median is None:
            return longest, None
        if median > longest:
            return 0.0, median
        upper = self._tool_times.quantile(end.tool_keys, HOLD_QUANTILE, now) or 0.0
        return min(longest, HOLD_MARGIN_FACTOR * upper + HOLD_MARGIN_SECONDS), median

    def _longest_hold(self, tokens: int, capacity: int) -> float:
        """Return for how long holding a place is cheaper than prefilling the session again.

        That is the time which prefilling it takes, multiplied by the load of prefill if no prefix
        were cached: the prefill of all sessions that fit, relative to the time of a turn. Above 1,
        the engine could not prefill them in time; far below 1, prefill costs next to nothing.
        """
        limits, rate = self._limits, self._prefill_rate
        load = rate.seconds(capacity) / self._turn_seconds
        seconds = min(limits.hold_factor, LOAD_FACTOR * load) * rate.seconds(tokens)
        return min(seconds, limits.rotation_seconds)
