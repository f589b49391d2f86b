"""What a seal carries, and what it leaves out when it would be too long."""

from array import array
from collections.abc import Iterator
from typing import Literal

import msgspec

from dovetail.ledger.entry import IDS, Span

Lack = Literal["previous", "raws", "spans", "ids"]

_ID_BYTES = array(IDS).itemsize


class Tail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of the previous turn: what came after its own last seal was sent.

    `start` is the number of its generated ids before these; `spans` are those after that seal.
    """

    entry: str
    start: int
    generated: bytes
    spans: tuple[Span, ...]
    stop: int | None = None


class Sealed(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    spans: tuple[Span, ...]
    before: bytes
    head: bytes
    thought: int = 0
    previous: Tail | None = None
    start: int = 0
    lacks: tuple[Lack, ...] = ()
    opening: str | None = None


def reductions(sealed: Sealed) -> Iterator[Sealed]:
    """The same, then less and less of it. The last has only ids of entries and hashes.

    Spans go oldest first, in doubling steps: they are in the turn's earlier seals too.
    """
    yield sealed
    if sealed.previous is not None:
        sealed = _lacking(sealed, "previous", previous=None)
        yield sealed
    if sealed.spans:
        bare = tuple(msgspec.structs.replace(span, raw="") for span in sealed.spans)
        sealed = _lacking(sealed, "raws", spans=bare)
        yield sealed
    for count in _doubling(len(sealed.spans) - 1):
        yield _without_first(sealed, count)
    yield _lacking(sealed, "ids", spans=(), generated=b"")


def least_size(sealed: Sealed) -> int:
    """About the fewest bytes that it compresses to: ids to two bytes each, text to an eighth."""
    parts = (sealed,) if sealed.previous is None else (sealed, sealed.previous)
    ids = sum(len(part.generated) for part in parts)
    text = sum(len(span.raw) + len(span.shown) for part in parts for span in part.spans)
    return ids // 2 + text // 8


def _lacking(sealed: Sealed, lack: Lack, **changes: object) -> Sealed:
    return msgspec.structs.replace(sealed, lacks=(*sealed.lacks, lack), **changes)


def _without_first(sealed: Sealed, count: int) -> Sealed:
    start = max(sealed.start, sealed.spans[count - 1].tokens)
    generated = sealed.generated[(start - sealed.start) * _ID_BYTES :]
    left = sealed.spans[count:]
    return _lacking(sealed, "spans", spans=left, generated=generated, start=start)


def _doubling(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    if most > 0:
        yield most
