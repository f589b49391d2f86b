"""The walk along a history: turn by turn, which entry it is and what the chain has come to.

Two chains. The visible one is what entries are looked up by. The line is over what the turns were
taken for: the entry, where one was recognised, else the client's own copy with its thoughts. Two
histories that look the same and were thought otherwise have the same chain and another line.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from dovetail.ledger.visible import SIZE, Seen, digest, link
from dovetail_model import Turn

START = bytes(SIZE)
_SESSIONS = 256


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
    """One turn of a walk: both chains before and with it, and the calls in the turns before it."""

    before: bytes
    line_before: bytes
    found: Found
    line: bytes
    calls: int

    @property
    def chain(self) -> bytes:
        return self.found.chain


def step(key: bytes, last: Step | None, calls: int, seen: Seen, found: Found) -> Step:
    """The next step. A turn that is not known is told apart by the client's own copy of it."""
    before = last.chain if last is not None else START
    line = last.line if last is not None else START
    taken = found.entry.encode() if found.entry is not None else seen.copy
    return Step(before, line, found, link(key, line, digest(seen.digest, taken)), calls)


class Walks:
    """The last walk of each session, to go on from."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[tuple[Turn, ...], list[Step]]] = (
            OrderedDict()
        )

    def resume(self, session: tuple[str, str], turns: tuple[Turn, ...]) -> list[Step]:
        """Steps that these turns begin with. Known turns are the same objects: it costs little."""
        walked, steps = self._known.get(session, ((), []))
        same = len(walked) - 2  # the last turns are looked up again: they may be known by now
        while same > 0 and walked[:same] != turns[:same]:
            same //= 2
        return steps[: max(same, 0)]

    def keep(self, session: tuple[str, str], turns: tuple[Turn, ...], steps: list[Step]) -> None:
        self._known[session] = (turns, steps)
        self._known.move_to_end(session)
        if len(self._known) > _SESSIONS:
            self._known.popitem(last=False)
