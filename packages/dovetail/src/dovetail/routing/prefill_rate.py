"""The measured rate at which an engine prefills tokens."""

#: Each observation reduces the weight of the earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of the assumed rate, as the tokens of one observed prompt.
ASSUMED_TOKENS = 1_000.0
#: Shorter prefills do not show the rate: their times are mostly those of the first output token.
MIN_TOKENS = 256


class PrefillRate:
    """Learns the throughput of prefill: the tokens per time in which the engine prefills.

    Engines prefill several prompts at once. Their times overlap, and count once.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._tokens = ASSUMED_TOKENS
        self._seconds = ASSUMED_TOKENS / tokens_per_second
        self._running = 0
        self._counted_until = 0.0

    def start(self, now: float) -> None:
        """Record that a prompt was sent to the engine."""
        if not self._running:
            self._counted_until = now
        self._running += 1

    def finish(self, tokens: int, now: float) -> None:
        """Record the first output token of a prompt, or that it was cancelled.

        `tokens`: the tokens of the prompt that were not cached; 0 if that is not known.
        """
        self._running -= 1
        if tokens < MIN_TOKENS:
            return
        self._tokens = self._tokens * DECAY_PER_OBSERVATION + tokens
        self._seconds = self._seconds * DECAY_PER_OBSERVATION + max(0.0, now - self._counted_until)
        self._counted_until = now

    def seconds(self, tokens: int) -> float:
        """Return the expected time in which the engine prefills so many tokens."""
        return tokens * self._seconds / self._tokens
