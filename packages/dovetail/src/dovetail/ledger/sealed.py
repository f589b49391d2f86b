"""What a seal carries, and what it leaves out when it would be too long."""

from array import array
from collections.abc import Iterator
from typing import Literal

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, EntrySpan

OmittedPart = Literal["previous", "raws", "spans", "ids"]

_TOKEN_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


class PreviousTurnTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of the previous turn: what came after its own last seal was sent.

    `start` is the number of its generated ids before these; `spans` are those after that seal.
    """

    entry: str
    start: int
    generated: bytes
    spans: tuple[EntrySpan, ...]
    stop: int | None = None


class SealPayload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A turn since its last seal up to the end of a thought, the `thought`th; the first seal of a
    turn holds the end of the turn before it, too.

    `generated` is packed like an entry's, without the turn's first `start` ids.
    `lacks` says what was left out to keep the seal short, in this order: the previous turn's tail;
    the `raw` of the spans (the ids still spell it); the first spans, with their ids, so that
    `start` is larger; all spans and ids.
    """

    entry: str
    parent: str | None
    generated: bytes
    spans: tuple[EntrySpan, ...]
    before: bytes
    head: bytes
    thought: int = 0
    previous: PreviousTurnTail | None = None
    start: int = 0
    lacks: tuple[OmittedPart, ...] = ()
    opening: str | None = None


def iter_reductions(sealed: SealPayload) -> Iterator[SealPayload]:
    """The same, then less and less of it. The last has only ids of entries and hashes.

    Spans go oldest first, in doubling steps: they are in the turn's earlier seals too.
    """
    yield sealed
    if sealed.previous is not None:
        sealed = _omit(sealed, "previous", previous=None)
        yield sealed
    if sealed.spans:
        bare = tuple(msgspec.structs.replace(span, raw="") for span in sealed.spans)
        sealed = _omit(sealed, "raws", spans=bare)
        yield sealed
    for count in _doubling_counts(len(sealed.spans) - 1):
        yield _drop_first_spans(sealed, count)
    yield _omit(sealed, "ids", spans=(), generated=b"")


def estimate_min_bytes(sealed: SealPayload) -> int:
    """About the fewest bytes that it compresses to: ids to two bytes each, text to an eighth."""
    parts = (sealed,) if sealed.previous is None else (sealed, sealed.previous)
    ids = sum(len(part.generated) for part in parts)
    text = sum(len(span.raw) + len(span.shown) for part in parts for span in part.spans)
    return ids // 2 + text // 8


def _omit(sealed: SealPayload, part: OmittedPart, **changes: object) -> SealPayload:
    return msgspec.structs.replace(sealed, lacks=(*sealed.lacks, part), **changes)


def _drop_first_spans(sealed: SealPayload, count: int) -> SealPayload:
    start = max(sealed.start, sealed.spans[count - 1].tokens)
    generated = sealed.generated[(start - sealed.start) * _TOKEN_ID_BYTES :]
    left = sealed.spans[count:]
    return _omit(sealed, "spans", spans=left, generated=generated, start=start)


def _doubling_counts(limit: int) -> Iterator[int]:
    count = 1
    while count < limit:
        yield count
        count *= 2
    if limit > 0:
        yield limit
