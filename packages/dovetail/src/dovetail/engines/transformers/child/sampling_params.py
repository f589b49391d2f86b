"""Sampling parameters of requests, and token counts on the device for penalties.

When the library restarts a request, it moves the generated tokens to the end of the prompt.
"""

from collections.abc import Mapping
from importlib import import_module
from random import SystemRandom
from typing import Any, Protocol

from dovetail_model import Sampling

PARAMS_KEY = "draw"  # the only keyword argument that the library passes through
#: Lower temperatures are greedy, because their scores would overflow.
MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e3
MAX_PENALTY = 1e4


class TokenMask(Protocol):
    """Defines which tokens may come next."""

    def fill(self, generated: list[int], words: Any) -> None:
        """Write one bit per token, given the generated tokens."""


class SamplingParams:
    """One request's parameters. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 filter nothing.

    Instances are compared by identity: a request has the same one from the first token to the last.
    `logprobs`: the number of top logprobs per token, None for no logprobs.
    `recorded_logprobs`: the logprob of each token and its top logprobs, from sampling until
    delivery.
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
        """Return the same object: a request that the library restarts continues its grammar."""
        return self


class SamplingDefaults:
    """Fills in unset parameters from the model's own generation config."""

    __slots__ = ("_defaults", "_random", "vocab_size")

    def __init__(self, defaults: Mapping[str, Any], vocabulary: int) -> None:
        self._defaults = defaults
        self._random = SystemRandom()
        self.vocab_size = vocabulary

    def resolve(self, sampling: Sampling, guide: TokenMask | None = None) -> SamplingParams:
        """Return the parameters of a request, clamped to valid ranges so that no step fails."""
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


MAX_COUNT = 32_767  # of one token
PROMPT_ONLY = -1  # the token is in the prompt but was not generated


class TokenCounts:
    """Token counts on the device, one row per request with penalties.

    The rows of a batch change from step to step, so each request has its own slot. The library does
    not report the end of a request: its slot is reused when no other is free. A request that
    returns after that is counted from the start.
    """

    def __init__(self, slots: int, vocabulary: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._device = device
        self.empty_slot = slots  # a slot that stays empty
        self._counts = torch.zeros((slots + 1, vocabulary), dtype=torch.int16, device=device)
        self._slots: dict[SamplingParams, int] = {}
        self._requests: list[_RequestCounts | None] = [None] * slots

    def update(self, states: list[Any], params: list[SamplingParams]) -> list[int]:
        """Count all generated tokens of a batch and return its slots."""
        slots = [self.empty_slot] * len(params)
        places: list[tuple[int, int]] = []
        times: list[int] = []
        in_batch = {request_params for request_params in params if request_params.has_penalties}
        for row, (state, request_params) in enumerate(zip(states, params, strict=True)):
            if request_params in in_batch:
                slot = slots[row] = self._slot(request_params, in_batch)
                request_counts = self._requests[slot]
                if request_counts is None:
                    request_counts = self._requests[slot] = _RequestCounts(request_params, state)
                    self._counts[slot].zero_()
                changes = request_counts.changes(state)
                places.extend((slot, id) for id in changes)
                times.extend(changes.values())
        if times:
            at = self._torch.tensor(places, device=self._device).unbind(1)
            new = self._torch.tensor(times, dtype=self._counts.dtype).to(self._device)
            self._counts.index_put_(at, new)
        return slots

    def apply_penalties(self, scores: Any, slots: Any, penalties: Any) -> Any:
        """Apply each row's penalties to the scores of tokens in its prompt or output."""
        torch = self._torch
        presence, frequency, repetition = penalties
        counts = self._counts.index_select(0, slots)
        seen, count = counts != 0, counts.clamp(min=0)
        smaller = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(seen, smaller, scores)
        return scores - (frequency * count + presence * (count > 0))

    def _slot(self, request_params: SamplingParams, in_batch: set[SamplingParams]) -> int:
        """Return the request's own slot, else a free one, else one of a request outside the batch.

        There is always such a slot.
        """
        slot = self._slots.get(request_params)
        if slot is None:
            slot = len(self._slots)
            if slot == self.empty_slot:
                slot = self._slots.pop(
                    next(other for other in self._slots if other not in in_batch)
                )
            self._slots[request_params] = slot
            self._requests[slot] = None
        return slot


def generated_ids(state: Any) -> list[int]:
    """Return the generated ids of a request, which must not be modified."""
    first = state._true_initial_tokens
    generated: list[int] = state.generated_tokens
    return state.initial_tokens[first:] + generated if first else generated


def generated_length(state: Any) -> int:
    """Return the number of generated tokens."""
    first = state._true_initial_tokens
    moved = len(state.initial_tokens) - first if first else 0
    return moved + len(state.generated_tokens)


class _RequestCounts:
    """The counts of one request, as they are on the device."""

    __slots__ = ("_counted", "_counts")

    def __init__(self, request_params: SamplingParams, state: Any) -> None:
        first = state._true_initial_tokens or len(state.initial_tokens)
        prompt = state.initial_tokens[:first] if request_params.repetition != 1.0 else ()
        self._counts: dict[int, int] = dict.fromkeys(prompt, PROMPT_ONLY)
        self._counted: int | None = None

    def changes(self, state: Any) -> dict[int, int]:
        """Return all counts at first, then those that changed."""
        begin = self._counted or 0
        new_ids = generated_ids(state)[begin:]
        for id in new_ids:
            self._counts[id] = min(max(self._counts.get(id, 0), 0) + 1, MAX_COUNT)
        changed = (
            self._counts if self._counted is None else {id: self._counts[id] for id in new_ids}
        )
        self._counted = begin + len(new_ids)
        return changed
