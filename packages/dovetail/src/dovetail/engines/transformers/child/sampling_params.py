"""What each request has said, and how often, counted on the device for penalties.

A request that the library has to start again has its tokens moved to the end of its prompt.
"""

from importlib import import_module
from typing import Any

from dovetail.engines.transformers.child.sampling import Draw

MOST = 32_767  # times, of a token
IN_PROMPT = -1  # and not said


class Counts:
    """A row of counts for each request that asks for penalties.

    Rows of a batch change their places from step to step, so a request has a slot of its own.
    Nobody says when a request has ended: its slot goes to another when there is no other left. One
    that comes back is counted anew.
    """

    def __init__(self, slots: int, vocabulary: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._device = device
        self.nobody = slots  # a slot that stays empty
        self._counts = torch.zeros((slots + 1, vocabulary), dtype=torch.int16, device=device)
        self._slots: dict[Draw, int] = {}
        self._tallies: list[_Tally | None] = [None] * slots

    def update(self, states: list[Any], draws: list[Draw]) -> list[int]:
        """The slots of a batch, with all counted that was said."""
        slots = [self.nobody] * len(draws)
        places: list[tuple[int, int]] = []
        times: list[int] = []
        present = {draw for draw in draws if draw.penalized}
        for row, (state, draw) in enumerate(zip(states, draws, strict=True)):
            if draw in present:
                slot = slots[row] = self._slot(draw, present)
                tally = self._tallies[slot]
                if tally is None:
                    tally = self._tallies[slot] = _Tally(draw, state)
                    self._counts[slot].zero_()
                changes = tally.changes(state)
                places.extend((slot, id) for id in changes)
                times.extend(changes.values())
        if times:
            at = self._torch.tensor(places, device=self._device).unbind(1)
            new = self._torch.tensor(times, dtype=self._counts.dtype).to(self._device)
            self._counts.index_put_(at, new)
        return slots

    def penalized(self, scores: Any, slots: Any, penalties: Any) -> Any:
        """Scores of tokens that were in a prompt or were said, lowered by each row's penalties."""
        torch = self._torch
        presence, frequency, repetition = penalties
        counts = self._counts.index_select(0, slots)
        seen, count = counts != 0, counts.clamp(min=0)
        smaller = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(seen, smaller, scores)
        return scores - (frequency * count + presence * (count > 0))

    def _slot(self, draw: Draw, present: set[Draw]) -> int:
        """Its own; else a free one, or one whose request is not in this batch: there always is."""
        slot = self._slots.get(draw)
        if slot is None:
            slot = len(self._slots)
            if slot == self.nobody:
                slot = self._slots.pop(next(other for other in self._slots if other not in present))
            self._slots[draw] = slot
            self._tallies[slot] = None
        return slot


def said(state: Any) -> list[int]:
    """What a request has generated, not to be changed."""
    first = state._true_initial_tokens
    generated: list[int] = state.generated_tokens
    return state.initial_tokens[first:] + generated if first else generated


def length(state: Any) -> int:
    """How much that is."""
    first = state._true_initial_tokens
    again = len(state.initial_tokens) - first if first else 0
    return again + len(state.generated_tokens)


class _Tally:
    """The counts of one request, as far as the device was told."""

    __slots__ = ("_counts", "_told")

    def __init__(self, draw: Draw, state: Any) -> None:
        first = state._true_initial_tokens or len(state.initial_tokens)
        prompt = state.initial_tokens[:first] if draw.repetition != 1.0 else ()
        self._counts: dict[int, int] = dict.fromkeys(prompt, IN_PROMPT)
        self._told: int | None = None

    def changes(self, state: Any) -> dict[int, int]:
        """All counts at first, then those that are new."""
        begin = self._told or 0
        fresh = said(state)[begin:]
        for id in fresh:
            self._counts[id] = min(max(self._counts.get(id, 0), 0) + 1, MOST)
        changed = self._counts if self._told is None else {id: self._counts[id] for id in fresh}
        self._told = begin + len(fresh)
        return changed
