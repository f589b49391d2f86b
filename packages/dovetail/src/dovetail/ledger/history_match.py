"""The walk along a history: turn by turn, which entry it is and what the chain has come to.

Two chains. The visible one is what entries are looked up by. The line is over what the turns were
taken for: the entry, where one was recognised, else the client's own copy with its thoughts. Two
histories that look the same and were thought otherwise have the same chain and another line.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.entry import Entry
from dovetail.ledger.turn_digest import SIZE, Seen, digest, link
from dovetail_model import Turn

START = bytes(SIZE)
_LINES = 256
_CHARS = 128 << 20  # of all turns of all lines together
Line = tuple[str, str, bytes]
"""Tenant, session, and the digest of the first turn."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a turn was recognised as. By its handle for good; by its looks until a double appears.

    `chain` is the visible chain with the turn in it, as the entry has it.
    """

    chain: bytes
    entry: str | None
    by: Literal["handle", "chain", "nothing"]


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a walk: both chains before and with it, and the calls in the turns before it.

    `size` are the characters of all turns up to it.
    """

    before: bytes
    line_before: bytes
    found: Found
    line: bytes
    calls: int
    size: int = 0

    @property
    def chain(self) -> bytes:
        return self.found.chain


def step(key: bytes, last: Step | None, calls: int, seen: Seen, found: Found) -> Step:
    """The next step. A turn that is not known is told apart by the client's own copy of it."""
    before = last.chain if last is not None else START
    line = last.line if last is not None else START
    taken = found.entry.encode() if found.entry is not None else seen.copy
    size = seen.size + (last.size if last is not None else 0)
    return Step(before, line, found, link(key, line, digest(seen.digest, taken)), calls, size)


class Walk:
    """The steps along a history, with what is asked of them kept beside: a session grows long.

    `places` are those of assistant turns, `looks` of those known by their looks alone. `begun` is
    the entry of a turn behind them that the model is to go on from. `seen_at` says how far the
    ledger was when those with looks alone were last looked for.
    """

    __slots__ = (
        "begun",
        "chains",
        "looks",
        "notes",
        "places",
        "seen_at",
        "steps",
        "turns",
    )

    def __init__(self, turns: tuple[Turn, ...]) -> None:
        self.turns = turns
        self.steps: list[Step] = []
        self.chains: list[bytes] = []
        self.places: list[int] = []
        self.looks: list[int] = []
        self.notes: list[str] = []
        self.begun: Entry | None = None
        self.seen_at: tuple[int | None, int] = (None, 0)  # the ledger's state at its end

    def up_to(self, turns: tuple[Turn, ...], count: int) -> "Walk":
        """A walk along other turns that begin with the same `count`."""
        other = Walk(turns)
        other.steps = self.steps[:count]
        other.chains = self.chains[:count]
        other.places = self.places[: bisect_left(self.places, count)]
        other.looks = self.looks[: bisect_left(self.looks, count)]
        other.seen_at = self.seen_at
        return other

    def sure(self) -> "Walk":
        """The walk up to the first of the model's turns that nobody knows yet."""
        unknown = (at for at in self.places if self.steps[at].found.entry is None)
        first = next(unknown, None)
        return self if first is None else self.up_to(self.turns, first)

    @property
    def last(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def size(self) -> int:
        """Characters of its turns."""
        return self.steps[-1].size if self.steps else 0

    def add(self, one: Step) -> None:
        at = len(self.steps)
        if self.turns[at].role == "assistant":
            self.places.append(at)
            if one.found.by == "chain":
                self.looks.append(at)
        self.steps.append(one)
        self.chains.append(one.chain)


class Walks:
    """The last walk of each line of a session, to go on from: so many, of so many characters."""

    __slots__ = ("_chars", "_known", "_most_chars")

    def __init__(self, most_chars: int = _CHARS) -> None:
        self._known: OrderedDict[Line, Walk] = OrderedDict()
        self._most_chars = most_chars
        self._chars = 0

    def resume(self, session: Line, turns: tuple[Turn, ...]) -> Walk:
        """The steps that these turns begin with. Known turns are the same objects: it costs little.

        The last turns are looked up again: they may be known by now.
        """
        known = self._known.get(session)
        if known is None:
            return Walk(turns)
        same = min(len(known.turns) - 2, len(turns))
        while same > 0 and known.turns[:same] != turns[:same]:
            same //= 2
        return known.up_to(turns, max(same, 0))

    def keep(self, session: Line, walk: Walk) -> None:
        before = self._known.pop(session, None)
        self._chars += walk.size - (before.size if before is not None else 0)
        self._known[session] = walk
        while len(self._known) > _LINES or self._chars > self._most_chars:
            self._chars -= self._known.popitem(last=False)[1].size
