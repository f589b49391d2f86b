"""A training sample: the token ids of a branch of turns, and a mask of those the model chose.

Samples contain no text and no re-encoded text: the ids are those that the engine received and
returned.
"""

from array import array
from collections.abc import Sequence
from math import isnan
from typing import Literal, NamedTuple

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry, unpack_ids, unpack_logprobs

SAMPLE_SCHEMA = "dovetail.sample/1"


class SampleSpan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a turn's output with its markers. `id` and `name` are set for calls."""

    kind: Literal["text", "reasoning", "call"]
    start: int
    end: int
    id: str = ""
    name: str = ""


class SampleTurn(msgspec.Struct, frozen=True):
    """The position of a turn in the ids of its sample.

    All ids before `prompt_end` are the prompt that the engine received; the ids from `start` on
    are new in this prompt. The model's output follows, up to `end`. `stop` is the stop token. It
    is the last id before `end`, unless the next prompt has another id at this position.
    """

    entry: str
    created: float
    start: int
    prompt_end: int
    end: int
    stop: int | None
    finish: str
    spans: tuple[SampleSpan, ...]


class TrainingSample(msgspec.Struct, frozen=True):
    """One line of the export.

    `model`: the fingerprint of vocabulary, template and notation, as shown by `dovetail inspect`.
    `loss_mask`: 1 for ids that the model chose.
    `logprobs`: null for ids without a known logprob; null as the field's value if none is known.
    """

    session: str
    agent: str
    tenant: str
    model: str
    ids: "Sequence[int]"
    loss_mask: "Sequence[int]"
    logprobs: Sequence[float | None] | None
    turns: tuple[SampleTurn, ...]
    schema: str = SAMPLE_SCHEMA


class SampleStep(NamedTuple):
    """A turn and the new ids of its prompt: those after the previous turn, or the whole prompt."""

    entry: LedgerEntry
    new_ids: "array[int]"


def build_sample(steps: Sequence[SampleStep]) -> TrainingSample:
    """Build the sample of a branch of turns."""
    builder = _SampleBuilder()
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        builder.add(step, following)
    last = steps[-1].entry
    return TrainingSample(
        session=last.session,
        agent=last.agent,
        tenant=last.tenant,
        model=last.model,
        ids=builder.ids.tolist(),
        loss_mask=list(builder.mask),
        logprobs=builder.logprobs if builder.has_logprobs else None,
        turns=tuple(builder.turns),
    )


class _SampleBuilder:
    """Builds a sample turn by turn."""

    def __init__(self) -> None:
        self.ids = array(TOKEN_ID_TYPECODE)
        self.mask = bytearray()
        self.logprobs: list[float | None] = []
        self.has_logprobs = False
        self.turns: list[SampleTurn] = []
        self._stop_ids = 0  # number of leading ids of the next prompt that the last turn generated

    def add(self, step: SampleStep, following: SampleStep | None) -> None:
        """Add a turn, with its stop token if the next prompt also contains it."""
        entry, start = step.entry, len(self.ids)
        self._extend(step.new_ids[self._stop_ids :], 0)
        prompt_end = len(self.ids)
        self._extend(unpack_ids(entry.generated), 1)
        self._stop_ids = 0
        if entry.stop is not None and _is_followed_by(entry.stop, following):
            self._extend(array(TOKEN_ID_TYPECODE, [entry.stop]), 1)
            self._stop_ids = 1
        for begin, end in entry.forced:
            self.mask[prompt_end + begin : prompt_end + end] = bytes(end - begin)
        self._add_logprobs(entry.logprobs, prompt_end)
        self.turns.append(
            SampleTurn(
                entry=entry.id,
                created=entry.created,
                start=start,
                prompt_end=prompt_end,
                end=len(self.ids),
                stop=entry.stop,
                finish=entry.finish,
                spans=_sample_spans(entry, prompt_end),
            )
        )

    def _extend(self, ids: "array[int]", chosen: int) -> None:
        self.ids.extend(ids)
        self.mask.extend(bytes([chosen]) * len(ids))
        self.logprobs.extend([None] * len(ids))

    def _add_logprobs(self, packed: bytes, start: int) -> None:
        added_ids = len(self.ids) - start
        for at, value in enumerate(unpack_logprobs(packed)[:added_ids], start):
            if not isnan(value) and self.mask[at]:
                self.logprobs[at] = value
                self.has_logprobs = True


def _is_followed_by(stop: int, following: SampleStep | None) -> bool:
    """Return whether the next prompt continues with the stop token, or there is no next prompt."""
    return following is None or following.new_ids[:1] == array(TOKEN_ID_TYPECODE, [stop])


def _sample_spans(entry: LedgerEntry, prompt_end: int) -> tuple[SampleSpan, ...]:
    found = []
    start, generated_count = 0, len(unpack_ids(entry.generated))
    for span in entry.spans:
        id, name = (span.id, span.name) if span.kind == "call" else ("", "")
        end = max(start, min(span.tokens, generated_count))
        found.append(SampleSpan(span.kind, prompt_end + start, prompt_end + end, id, name))
        start = end
    return tuple(found)
