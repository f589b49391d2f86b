"""The measured rate at which an engine prefills tokens."""

import asyncio

from dovetail.engines.engine import TokenDelta, TokenSink

#: Each observation reduces the weight of the earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of the assumed rate, as the tokens of one observed prompt.
ASSUMED_TOKENS = 1_000.0
#: Shorter prefills do not show the rate: their times are mostly those of the first output token.
MIN_TOKENS = 256


class _BusyPeriod:
    """A time in which the engine always prefills. It is counted up to `counted_until`."""

    __slots__ = ("counted_until",)

    def __init__(self, start: float) -> None:
        self.counted_until = start


#: The period in which a prompt was prefilled, and when it ended.
_Prefill = tuple[_BusyPeriod, float]


class PrefillRate:
    """Learns the throughput of prefill: the tokens per time in which the engine prefills.

    Engines prefill several prompts at once. Their times overlap, and count once.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._tokens = ASSUMED_TOKENS
        self._seconds = ASSUMED_TOKENS / tokens_per_second
        self._running = 0
        self._period = _BusyPeriod(0.0)

    def start(self, now: float) -> None:
        """Record that a prompt was sent to the engine."""
        if not self._running:
            self._period = _BusyPeriod(now)
        self._running += 1

    def end(self, now: float) -> _Prefill:
        """Record the first output token of a prompt, or that it was cancelled."""
        self._running -= 1
        return self._period, now

    def observe(self, prefill: _Prefill, tokens: int) -> None:
        """Learn from a prefill that has ended, once its tokens that were not cached are known."""
        if tokens < MIN_TOKENS:
            return
        period, end = prefill
        seconds = max(0.0, end - period.counted_until)
        period.counted_until = max(end, period.counted_until)
        self._tokens = self._tokens * DECAY_PER_OBSERVATION + tokens
        self._seconds = self._seconds * DECAY_PER_OBSERVATION + seconds

    def finish(self, tokens: int, now: float) -> None:
        """Record the first output token of a prompt of which so many tokens were not cached."""
        self.observe(self.end(now), tokens)

    def seconds(self, tokens: int) -> float:
        """Return the expected time in which the engine prefills so many tokens."""
        return tokens * self._seconds / self._tokens


class PrefillMeter:
    """Forwards deltas to another sink, and measures the prefill before the first one.

    vLLM and Dynamo report the cached tokens in the last delta, other engines in the first one.
    """

    __slots__ = ("_is_pending", "_prefill", "_prompt_tokens", "_push", "_rate", "drain")

    def __init__(self, rate: PrefillRate, prompt_tokens: int, sink: TokenSink) -> None:
        self._rate = rate
        self._prompt_tokens = prompt_tokens
        self._push = sink.push
        self.drain = sink.drain
        self._prefill: _Prefill | None = None
        self._is_pending = True  # whether the cached tokens are not known
        rate.start(asyncio.get_running_loop().time())

    def push(self, delta: TokenDelta) -> bool:
        if self._is_pending:
            prefill = self.stop()
            if delta.cached is not None:
                self._is_pending = False
                self._rate.observe(prefill, self._prompt_tokens - delta.cached)
        return self._push(delta)

    def stop(self) -> _Prefill:
        """End the measurement at the first delta, or when the request has ended without one."""
        if self._prefill is None:
            self._prefill = self._rate.end(asyncio.get_running_loop().time())
        return self._prefill
