"""What each request has said, and how often, counted on the device for penalties.

A request that the library has to start again has its tokens moved to the end of its prompt.
"""

from collections.abc import Mapping
from importlib import import_module
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
        "recorded_logprobs",
        "repetition",
        "seed",
        "temperature",
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


MAX_COUNT = 32_767  # times, of a token
PROMPT_ONLY = -1  # and not said


class TokenCounts:
    """A row of counts for each request that asks for penalties.

    Rows of a batch change their places from step to step, so a request has a slot of its own.
    Nobody says when a request has ended: its slot goes to another when there is no other left. One
    that comes back is counted anew.
    """

    def __init__(self, slots: int, vocabulary: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._device = device
        self.empty_slot = slots  # a slot that stays empty
        self._counts = torch.zeros((slots + 1, vocabulary), dtype=torch.int16, device=device)
        self._slots: dict[SamplingParams, int] = {}
        self._requests: list[_RequestCounts | None] = [None] * slots

    def update(self, states: list[Any], params: list[SamplingParams]) -> list[int]:
        """The slots of a batch, with all counted that was said."""
        slots = [self.empty_slot] * len(params)
        places: list[tuple[int, int]] = []
        times: list[int] = []
        present = {draw for draw in params if draw.has_penalties}
        for row, (state, draw) in enumerate(zip(states, params, strict=True)):
            if draw in present:
                slot = slots[row] = self._slot(draw, present)
                tally = self._requests[slot]
                if tally is None:
                    tally = self._requests[slot] = _RequestCounts(draw, state)
                    self._counts[slot].zero_()
                changes = tally.changes(state)
                places.extend((slot, id) for id in changes)
                times.extend(changes.values())
        if times:
            at = self._torch.tensor(places, device=self._device).unbind(1)
            new = self._torch.tensor(times, dtype=self._counts.dtype).to(self._device)
            self._counts.index_put_(at, new)
        return slots

    def apply_penalties(self, scores: Any, slots: Any, penalties: Any) -> Any:
        """Scores of tokens that were in a prompt or were said, lowered by each row's penalties."""
        torch = self._torch
        presence, frequency, repetition = penalties
        counts = self._counts.index_select(0, slots)
        seen, count = counts != 0, counts.clamp(min=0)
        smaller = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(seen, smaller, scores)
        return scores - (frequency * count + presence * (count > 0))

    def _slot(self, draw: SamplingParams, present: set[SamplingParams]) -> int:
        """Its own; else a free one, or one whose request is not in this batch: there always is."""
        slot = self._slots.get(draw)
        if slot is None:
            slot = len(self._slots)
            if slot == self.empty_slot:
                slot = self._slots.pop(next(other for other in self._slots if other not in present))
            self._slots[draw] = slot
            self._requests[slot] = None
        return slot


def generated_ids(state: Any) -> list[int]:
    """What a request has generated, not to be changed."""
    first = state._true_initial_tokens
    generated: list[int] = state.generated_tokens
    return state.initial_tokens[first:] + generated if first else generated


def generated_length(state: Any) -> int:
    """How much that is."""
    first = state._true_initial_tokens
    again = len(state.initial_tokens) - first if first else 0
    return again + len(state.generated_tokens)


class _RequestCounts:
    """The counts of one request, as far as the device was told."""

    __slots__ = ("_counted", "_counts")

    def __init__(self, draw: SamplingParams, state: Any) -> None:
        first = state._true_initial_tokens or len(state.initial_tokens)
        prompt = state.initial_tokens[:first] if draw.repetition != 1.0 else ()
        self._counts: dict[int, int] = dict.fromkeys(prompt, PROMPT_ONLY)
        self._counted: int | None = None

    def changes(self, state: Any) -> dict[int, int]:
        """All counts at first, then those that are new."""
        begin = self._counted or 0
        fresh = generated_ids(state)[begin:]
        for id in fresh:
            self._counts[id] = min(max(self._counts.get(id, 0), 0) + 1, MAX_COUNT)
        changed = self._counts if self._counted is None else {id: self._counts[id] for id in fresh}
        self._counted = begin + len(fresh)
        return changed
