"""The measured rate at which an engine prefills tokens."""

import asyncio
from collections.abc import Callable

from dovetail.engines.engine import TokenDelta, TokenSink

#: Each observation reduces the weight of the earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of the assumed rate, as the tokens of one observed prompt.
ASSUMED_TOKENS = 1_000.0
#: Shorter prefills do not show the rate: their times are mostly those of the first output token.
MIN_TOKENS = 256
MIN_SECONDS = 1e-9


class BusyPeriod:
    """A time in which the engine always prefills. It is counted up to `counted_until`."""

    __slots__ = ("counted_until",)

    def __init__(self, start: float) -> None:
        self.counted_until = start


#: The period in which a prompt was prefilled, and when it ended.
_Prefill = tuple[BusyPeriod, float]


class PrefillRate:
    """Learns the throughput of prefill: the tokens per time in which the engine prefills.

    Engines prefill several prompts at once. Their times overlap, and count once. The time in which
    a prompt waits in the engine for room is no time of prefill: it counts only while the engine
    also prefills others.

    `is_measured`: whether a prompt was observed, so that the rate is not the assumed one.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._tokens = ASSUMED_TOKENS
        self._seconds = ASSUMED_TOKENS / tokens_per_second
        self._running = 0
        self.is_measured = False
        self._period = BusyPeriod(0.0)

    def start(self, now: float) -> None:
        """Record that a prompt was sent to the engine."""
        if not self._running:
            self._period = BusyPeriod(now)
        self._running += 1

    def end(self, now: float) -> _Prefill:
        """Record the first output token of a prompt, or that it was cancelled."""
        self._running -= 1
        return self._period, now

    def period(self) -> BusyPeriod | None:
        """Return the period in which the engine prefills now; None if it prefills nothing."""
        return self._period if self._running else None

    def end_queued(self, start: BusyPeriod | None, now: float) -> _Prefill | None:
        """Record the first output token of a prompt that may have waited in the engine.

        It counts if the engine was prefilling all the time since the prompt was sent, in the period
        `start`: otherwise, a part of its prefill would be missing.
        """
        return None if start is None or start is not self.period() else (start, now)

    def observe(self, prefill: _Prefill | None, tokens: int) -> None:
        """Learn from a prefill that has ended, once its tokens that were not cached are known."""
        if prefill is None or tokens < MIN_TOKENS:
            return
        self.is_measured = True
        period, end = prefill
        seconds = max(0.0, end - period.counted_until)
        period.counted_until = max(end, period.counted_until)
        self._tokens = self._tokens * DECAY_PER_OBSERVATION + tokens
        self._seconds = self._seconds * DECAY_PER_OBSERVATION + seconds

    def finish(self, tokens: int, now: float) -> None:
        """Record the first output token of a prompt of which so many tokens were not cached."""
        self.observe(self.end(now), tokens)

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / max(self._seconds, MIN_SECONDS)

    def seconds(self, tokens: int) -> float:
        """Return the expected time in which the engine prefills so many tokens."""
        return tokens * self._seconds / self._tokens


class PrefillMeter:
    """Forwards deltas to another sink, and measures the prefill before the first one.

    vLLM and Dynamo report the cached tokens in the last delta, other engines in the first one.

    `on_output`: called with the time of the first delta.
    `is_queued`: the prompt may wait in the engine for room.
    """

    __slots__ = (
        "_is_ended",
        "_is_pending",
        "_is_queued",
        "_on_output",
        "_prefill",
        "_prompt_tokens",
        "_push",
        "_rate",
        "_start",
        "drain",
    )

    def __init__(
        self,
        rate: PrefillRate,
        prompt_tokens: int,
        sink: TokenSink,
        on_output: Callable[[float], None] = lambda now: None,
        *,
        is_queued: bool = False,
    ) -> None:
        self._rate = rate
        self._prompt_tokens = prompt_tokens
        self._push = sink.push
        self.drain = sink.drain
        self._on_output = on_output
        self._is_queued = is_queued
        self._prefill: _Prefill | None = None
        self._is_ended = False
        self._is_pending = True  # whether the cached tokens are not known
        self._start = rate.period() if is_queued else None
        if not is_queued:
            rate.start(_now())

    def push(self, delta: TokenDelta) -> bool:
        if self._is_pending:
            if not self._is_ended:
                self._on_output(_now())
                self.stop()
            if delta.cached is not None:
                self._is_pending = False
                self._rate.observe(self._prefill, self._prompt_tokens - delta.cached)
        return self._push(delta)

    def stop(self) -> None:
        """End the measurement at the first delta, or when the request has ended without one."""
        if not self._is_ended:
            self._is_ended = True
            if self._is_queued:
                self._prefill = self._rate.end_queued(self._start, _now())
            else:
                self._prefill = self._rate.end(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
