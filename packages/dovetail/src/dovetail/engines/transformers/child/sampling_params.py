"""What each request has said, and how often, counted on the device for penalties.

A request that the library has to start again has its tokens moved to the end of its prompt.
"""

from importlib import import_module
from typing import Any

from dovetail.engines.transformers.child.sampling import SamplingParams

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

    __slots__ = ("_counts", "_counted")

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
