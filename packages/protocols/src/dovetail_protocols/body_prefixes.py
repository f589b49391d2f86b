"""What a session has sent before, compared instead of read.

The next request of an agent begins with the very bytes of its last one, up to where the history
grew. What these are as JSON is known: they open the history and go on with whole items. So the
items are left out, and what remains is read as a body of its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

WORTH = 1 << 14  # bytes of a body below which it is read as it is
_ITEM = 500  # bytes that an item takes when read, whatever is in it
_LINES = 8  # of one session: an agent with its sub-agents

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_FIELD = re.compile(rb'[ \t\r\n]*[{,][ \t\r\n]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
_END = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_NEXT = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_MORE = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*(?=\{)")


class Line(NamedTuple):
    """Where a history is found: the field that holds it, who reads its items, whose it is."""

    field: str
    kind: str
    session: str | None = None


class Beginning(NamedTuple):
    """The items that a body begins with: where they open, where each ends and what it read as.

    Only objects: where one ends does not depend on what follows it.
    """

    body: bytes
    opening: int
    ends: Sequence[int]
    read: Sequence[Any]

    def shared(self, body: bytes) -> int:
        """How many of the items the other body has, too, and nothing else before them.

        What was found to be the same is not compared again: in all, about once over the body.
        """
        mine, ends = memoryview(self.body), self.ends
        same, most, at = 0, len(ends), 0
        while same < most:
            middle = (same + most + 1) // 2
            if body.startswith(mine[at : ends[middle - 1]], at):
                same, at = middle, ends[middle - 1]
            else:
                most = middle - 1
        return same


class Rest(NamedTuple):
    """A body without the items that it begins with as another does, and where the next one is."""

    fields: dict[str, Raw]
    nearest: Beginning
    known_items: int
    at: int

    @property
    def known(self) -> Sequence[Any]:
        """What the items that are left out were read as."""
        return self.nearest.read[: self.known_items]


class Beginnings:
    """The last bodies of sessions, in two generations as `Memory` has them."""

    __slots__ = ("_filled", "_half", "_old", "_young")

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._filled = 0
        self._young: dict[Line, tuple[Beginning, ...]] = {}
        self._old: dict[Line, tuple[Beginning, ...]] = {}

    def rest(self, line: Line, body: bytes) -> Rest | None:
        """What is new in a body, and what it begins with; None if nothing of it is known."""
        lines = self._lines(line) if len(body) >= WORTH else ()
        if not lines:
            return None
        shared, nearest = max(((one.shared(body), one) for one in lines), key=itemgetter(0))
        for count in range(shared, max(shared - 2, 0), -1):  # one item at least is not left out
            more = _MORE.match(body, nearest.ends[count - 1])
            if more is not None:
                return _rest(line, body, nearest, count, more.end())
        return None

    def keep(
        self, line: Line, body: bytes, rest: Rest | None, items: Sequence[Raw], read: Sequence[Any]
    ) -> None:
        """Remembers a body: `items` are those not left out, `read` is what all were read as."""
        if len(body) < WORTH or len(body) > self._half:
            return
        if rest is not None:
            start, at = rest.nearest.opening, rest.at
            ends = list(rest.nearest.ends[: rest.known_items])
        else:
            found = _opening(body, _fields(body), line.field)
            if found is None:
                return
            start, at, ends = found, found, list[int]()
        ends += _ends(body, at, items)
        if ends:
            self._add(line, Beginning(body, start, ends, read[: len(ends)]), rest)

    def _lines(self, line: Line) -> tuple[Beginning, ...]:
        return self._young.get(line) or self._old.get(line, ())

    def _add(self, line: Line, new: Beginning, rest: Rest | None) -> None:
        """Keeps it, in place of the one that it goes on from."""
        lines = self._lines(line)
        if rest is not None and 2 * rest.known_items >= len(rest.nearest.ends):
            lines = tuple(one for one in lines if one is not rest.nearest)
        others = (one for one in lines if one.body != new.body)
        kept = _fitting(self._half, (new, *others))
        if not kept:
            return
        more = _size(kept) - _size(self._young.get(line, ()))
        if self._filled + more > self._half:
            self._old, self._young, self._filled = self._young, {}, 0
            more = _size(kept)
        self._filled += more
        self._young[line] = kept


def _fitting(most: int, lines: tuple[Beginning, ...]) -> tuple[Beginning, ...]:
    """The newest of a session, no more than may be held."""
    lines = lines[:_LINES]
    while _size(lines) > most:
        lines = lines[:-1]
    return lines


def _size(lines: Iterable[Beginning]) -> int:
    """What they take: their bytes, and what the items were read as."""
    return sum(len(one.body) + _ITEM * len(one.ends) for one in lines)


def _rest(line: Line, body: bytes, nearest: Beginning, count: int, at: int) -> Rest | None:
    shorter = body[: nearest.opening] + body[at:]
    fields = _fields(shorter)
    if _opening(shorter, fields, line.field) != nearest.opening:
        return None
    return Rest(fields, nearest, count, at)


def _fields(body: bytes) -> dict[str, Raw]:
    """The fields of an object; none where there is a fault, which is told by whoever reads all."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _ends(body: bytes, at: int, items: Sequence[Raw]) -> list[int]:
    """Where the items end that stand here in the body, up to one that is no object."""
    found: list[int] = []
    for raw in items:
        space = _NEXT.match(body, at)
        at = space.end() if space is not None else at
        if not body.startswith(b"{", at) or not body.startswith(raw, at):
            break
        at += len(raw)
        found.append(at)
    return found


def _opening(body: bytes, fields: Mapping[str, Raw], name: str) -> int | None:
    """Where the items of a field begin, if the fields are all that the body says, each once."""
    at, found = 0, None
    for field, raw in fields.items():
        head = _FIELD.match(body, at)
        if head is None or head[1] != field.encode() or not body.startswith(raw, head.end()):
            return None
        at = head.end() + len(raw)
        if field == name and body.startswith(b"[", head.end()):
            found = head.end() + 1
    return found if _END.fullmatch(body, at) else None
