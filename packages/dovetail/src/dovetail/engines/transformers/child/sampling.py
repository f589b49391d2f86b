"""How one request's tokens are drawn: what it asks, filled up from the model's own config."""

from collections.abc import Mapping
from random import SystemRandom
from typing import Any, Protocol

from dovetail_model import Sampling

NAME = "draw"  # of the one argument that a request takes through the library
#: Temperatures below it are greedy: their scores would not fit a float.
COLDEST = 1e-5
HOTTEST = 1e3
ODDEST = 1e4  # times that a penalty may change a score, or what it may add


class Mask(Protocol):
    """Which tokens may come next."""

    def fill(self, said: list[int], words: Any) -> None:
        """Writes one bit for each token, by what was said so far."""


class Draw:
    """One request's parameters. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 filter nothing.

    It is known by its identity: the same object from the first token to the last. `logprobs` is
    how many of the likeliest are told beside each token, None that nothing is told; `told` has the
    logarithm of each token and those beside it, from when it is drawn until it is delivered.
    """

    __slots__ = (
        "frequency",
        "guide",
        "logprobs",
        "min_p",
        "presence",
        "repetition",
        "seed",
        "temperature",
        "told",
        "top_k",
        "top_p",
    )

    def __init__(self, **given: Any) -> None:
        self.temperature = float(given.get("temperature", 1.0))
        self.top_k = int(given.get("top_k", 0))
        self.top_p = float(given.get("top_p", 1.0))
        self.min_p = float(given.get("min_p", 0.0))
        self.presence = float(given.get("presence", 0.0))
        self.frequency = float(given.get("frequency", 0.0))
        self.repetition = float(given.get("repetition", 1.0))
        self.seed = int(given.get("seed", 0))
        self.guide: Mask | None = given.get("guide")
        self.logprobs: int | None = given.get("logprobs")
        self.told: list[tuple[float, list[tuple[int, float]]]] = []

    @property
    def penalized(self) -> bool:
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)

    def __deepcopy__(self, memo: Any) -> "Draw":
        """The library copies a request that it starts again. Its grammar goes on where it was."""
        return self


class Sampler:
    """Fills what a request leaves open from the model's own generation config."""

    __slots__ = ("_defaults", "_random", "vocabulary")

    def __init__(self, defaults: Mapping[str, Any], vocabulary: int) -> None:
        self._defaults = defaults
        self._random = SystemRandom()
        self.vocabulary = vocabulary

    def draw(self, sampling: Sampling, guide: Mask | None = None) -> Draw:
        """Values out of range are taken to its end: nothing fails once a request runs."""
        temperature = self._given(sampling, "temperature", 1.0)
        greedy = temperature < COLDEST
        top_k = int(self._given(sampling, "top_k", 0))
        return Draw(
            temperature=0.0 if greedy else min(temperature, HOTTEST),
            top_k=top_k if 0 < top_k < self.vocabulary and not greedy else 0,
            top_p=1.0 if greedy else _within(0.0, self._given(sampling, "top_p", 1.0), 1.0),
            min_p=0.0 if greedy else _within(0.0, self._given(sampling, "min_p", 0.0), 1.0),
            presence=_within(-ODDEST, sampling.presence_penalty or 0.0, ODDEST),
            frequency=_within(-ODDEST, sampling.frequency_penalty or 0.0, ODDEST),
            repetition=_within(
                1 / ODDEST, self._given(sampling, "repetition_penalty", 1.0), ODDEST
            ),
            seed=self._random.getrandbits(64) if sampling.seed is None else sampling.seed,
            guide=guide,
            logprobs=sampling.logprobs,
        )

    def _given(self, sampling: Sampling, name: str, otherwise: float) -> float:
        for value in (getattr(sampling, name), self._defaults.get(name)):
            if value is not None:
                return float(value)
        return otherwise


def _within(low: float, value: float, high: float) -> float:
    return min(max(value, low), high)
