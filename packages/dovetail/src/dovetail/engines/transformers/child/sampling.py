"""How one request's tokens are drawn: what it asks, filled up from the model's own config."""

from collections.abc import Mapping
from random import SystemRandom
from typing import Any, Protocol

from dovetail_model import Sampling

PARAMS_KEY = "draw"  # of the one argument that a request takes through the library
#: Temperatures below it are greedy: their scores would not fit a float.
MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e3
MAX_PENALTY = 1e4  # times that a penalty may change a score, or what it may add


class TokenMask(Protocol):
    """Which tokens may come next."""

    def fill(self, generated: list[int], words: Any) -> None:
        """Writes one bit for each token, by what was said so far."""


class SamplingParams:
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
        "recorded_logprobs",
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
        self.guide: TokenMask | None = given.get("guide")
        self.logprobs: int | None = given.get("logprobs")
        self.recorded_logprobs: list[tuple[float, list[tuple[int, float]]]] = []

    @property
    def has_penalties(self) -> bool:
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)

    def __deepcopy__(self, memo: Any) -> "SamplingParams":
        """The library copies a request that it starts again. Its grammar goes on where it was."""
        return self


class SamplingDefaults:
    """Fills what a request leaves open from the model's own generation config."""

    __slots__ = ("_defaults", "_random", "vocab_size")

    def __init__(self, defaults: Mapping[str, Any], vocabulary: int) -> None:
        self._defaults = defaults
        self._random = SystemRandom()
        self.vocab_size = vocabulary

    def resolve(self, sampling: Sampling, guide: TokenMask | None = None) -> SamplingParams:
        """Values out of range are taken to its end: nothing fails once a request runs."""
        temperature = self._value(sampling, "temperature", 1.0)
        greedy = temperature < MIN_TEMPERATURE
        top_k = int(self._value(sampling, "top_k", 0))
        return SamplingParams(
            temperature=0.0 if greedy else min(temperature, MAX_TEMPERATURE),
            top_k=top_k if 0 < top_k < self.vocab_size and not greedy else 0,
            top_p=1.0 if greedy else _clamp(0.0, self._value(sampling, "top_p", 1.0), 1.0),
            min_p=0.0 if greedy else _clamp(0.0, self._value(sampling, "min_p", 0.0), 1.0),
            presence=_clamp(-MAX_PENALTY, sampling.presence_penalty or 0.0, MAX_PENALTY),
            frequency=_clamp(-MAX_PENALTY, sampling.frequency_penalty or 0.0, MAX_PENALTY),
            repetition=_clamp(
                1 / MAX_PENALTY, self._value(sampling, "repetition_penalty", 1.0), MAX_PENALTY
            ),
            seed=self._random.getrandbits(64) if sampling.seed is None else sampling.seed,
            guide=guide,
            logprobs=sampling.logprobs,
        )

    def _value(self, sampling: Sampling, name: str, default: float) -> float:
        for value in (getattr(sampling, name), self._defaults.get(name)):
            if value is not None:
                return float(value)
        return default


def _clamp(low: float, value: float, high: float) -> float:
    return min(max(value, low), high)
