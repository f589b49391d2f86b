"""The measured rate at which an engine prefills tokens."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from dovetail.engines.engine import TokenDelta, TokenSink

#: Each observation reduces the weight of the earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of the assumed rate, as the tokens of one observed prompt.
ASSUMED_TOKENS = 1_000.0
#: Shorter prefills do not show the rate: their times are mostly those of the first output token.
MIN_TOKENS = 256
MIN_SECONDS = 1e-9
#: So many intervals are stored. Prefills that began before them are not observed.
MAX_INTERVALS = 256

#: When a prompt was sent, and when its output began.
_Prefill = tuple[float, float]


class CountedTimes:
    """The times that were counted, as intervals that do not touch each other."""

    __slots__ = ("_begins", "_counts_from", "_ends")

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._counts_from = float("-inf")

    def add(self, begin: float, end: float) -> float | None:
        """Count an interval. Return its seconds that were not counted; None if it is too old."""
        if begin < self._counts_from:
            return None
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        begins, ends = self._begins[first:last], self._ends[first:last]
        before = sum(ends) - sum(begins)
        begin, end = min([begin, *begins[:1]]), max([end, *ends[-1:]])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
        if len(self._begins) > MAX_INTERVALS:
            del self._begins[0]
            self._counts_from = self._ends.pop(0)
        return end - begin - before


class PrefillRate:
    """Learns the throughput of prefill: the tokens per time in which the engine prefills.

    Engines prefill several prompts at once. Their times overlap, and count once. The times of short
    and of cancelled prompts do not count. The time in which a prompt waits in the engine for room
    is no time of prefill: it counts only while the engine also prefills others.

    `is_measured`: whether a prompt was observed, so that the rate is not the assumed one.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._tokens = ASSUMED_TOKENS
        self._seconds = ASSUMED_TOKENS / tokens_per_second
        self._running = 0
        self._busy_since: float | None = None
        self._counted = CountedTimes()
        self.is_measured = False

    def start(self, now: float) -> float:
        """Record that a prompt was sent to the engine. Returns when."""
        if not self._running:
            self._busy_since = now
        self._running += 1
        return now

    def end(self, start: float, now: float) -> _Prefill:
        """Record the first output token of a prompt, or that it was cancelled."""
        self._running -= 1
        if not self._running:
            self._busy_since = None
        return start, now

    def end_queued(self, start: float, now: float) -> _Prefill | None:
        """Record the first output token of a prompt that may have waited in the engine.

        It counts if the engine was prefilling others all the time since it was sent: otherwise, a
        part of its prefill would be missing.
        """
        if self._busy_since is None or start < self._busy_since:
            return None
        return start, now

    def observe(self, prefill: _Prefill | None, tokens: int) -> None:
        """Learn from a prefill that has ended, once its tokens that were not cached are known."""
        if prefill is None or tokens < MIN_TOKENS:
            return
        seconds = self._counted.add(*prefill)
        if seconds is None:
            return
        self.is_measured = True
        self._tokens = self._tokens * DECAY_PER_OBSERVATION + tokens
        self._seconds = self._seconds * DECAY_PER_OBSERVATION + seconds

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
        self._start = _now()
        if not is_queued:
            rate.start(self._start)

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
                self._prefill = self._rate.end(self._start, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
