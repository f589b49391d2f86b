"""Predict for how long to hold the place of a session between two turns, and whether that pays."""

from dovetail.routing.prefill_rate import PrefillRate
from dovetail.routing.session_turns import SchedulingLimits, TurnEnd
from dovetail.routing.tool_times import ToolTimes

#: A place is held this much longer than the quantile of the expected return.
HOLD_QUANTILE, HOLD_MARGIN_FACTOR, HOLD_MARGIN_SECONDS = 0.95, 1.5, 1.0
#: The average time of a turn in the engine: first assumed, then measured.
ASSUMED_TURN_SECONDS, ASSUMED_TURNS, MIN_TURN_SECONDS = 3.0, 2.0, 0.01
DECAY_PER_TURN = 0.95
#: Each return of a session reduces the weight of the earlier ones by this factor.
DECAY_PER_RETURN = 0.9
#: After so many returns since the last change, holding is useless if places were held for less than
#: the first share of the returning tokens, until they are held for more than the second share.
MIN_RETURNS, USELESS_SHARE, USEFUL_SHARE = 8, 0.1, 0.25
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
        self._turns = ASSUMED_TURNS
        self._seconds = ASSUMED_TURNS * ASSUMED_TURN_SECONDS

    def observe_turn(self, seconds: float) -> None:
        """Record the time of a turn in the engine, without the time in its queue."""
        self._turns = self._turns * DECAY_PER_TURN + 1.0
        self._seconds = self._seconds * DECAY_PER_TURN + max(seconds, MIN_TURN_SECONDS)

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
        load = rate.seconds(capacity) * self._turns / self._seconds
        seconds = min(limits.hold_factor, LOAD_FACTOR * load) * rate.seconds(tokens)
        return min(seconds, limits.rotation_seconds)


class HeldReturns:
    """Measures how much of what sessions return with is held until then.

    Turns wait so that other sessions find their places when they return. If places would have been
    given up until then, because prefill is cheap or because the sessions wait for people, waiting
    saves no prefill. Only returns while turns wait can show that: there is no shortage otherwise.

    `is_useless`: hardly any place is held until its session returns.
    """

    __slots__ = ("_count", "_held", "_total", "is_useless")

    def __init__(self) -> None:
        self._held = self._total = 0.0
        self._count = 0
        self.is_useless = False

    def observe(self, tokens: int, *, is_held: bool) -> None:
        """Record the return of a session with so many tokens of its own."""
        self._held = self._held * DECAY_PER_RETURN + (tokens if is_held else 0)
        self._total = self._total * DECAY_PER_RETURN + tokens
        self._count += 1
        if self._count >= MIN_RETURNS:
            self._decide()

    def _decide(self) -> None:
        share = USEFUL_SHARE if self.is_useless else USELESS_SHARE
        is_useless = self._held < share * self._total
        if is_useless != self.is_useless:
            self.is_useless = is_useless
            self._count = 0
