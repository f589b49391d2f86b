"""The measured time in which an engine prefills tokens."""

#: Each observation reduces the weight of the earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of the assumed rate, as the length of one observed prompt.
ASSUMED_TOKENS = 1_000.0


class PrefillRate:
    """Learns how long prefilling takes, with the time that prompts wait in the engine's queue.

    The rate is fitted by least squares: a long prefill has more weight than many short ones, whose
    times are mostly those of the first output token.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self._squares = ASSUMED_TOKENS**2
        self._products = ASSUMED_TOKENS**2 / tokens_per_second

    def observe(self, tokens: int, seconds: float) -> None:
        """Record the time from sending a prompt to its first output token.

        `tokens`: the tokens of the prompt that were not cached.
        """
        if tokens <= 0 or seconds <= 0:
            return
        self._squares = self._squares * DECAY_PER_OBSERVATION + tokens * tokens
        self._products = self._products * DECAY_PER_OBSERVATION + tokens * seconds

    def seconds(self, tokens: int) -> float:
        """Return the expected time in which the engine prefills so many tokens."""
        return tokens * self._products / self._squares
