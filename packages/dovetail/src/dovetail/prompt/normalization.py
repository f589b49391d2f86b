"""The step from a request as it came to one whose token prefix stays what it was.

Cost is bounded by what is new: of each conversation the arrangement of its closed exchanges is
remembered, and a longer history that begins with the same turns goes on from there. The comparison
is one of tuples: for turns that are the same objects it costs nanoseconds, for equal ones a memcmp,
and turns that were made here (a tool turn out of a user's) come out as the same objects each time.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.prompt.arrange import (
    Arrangement,
    LateResult,
    leading,
    with_turns,
    without_blanks,
)
from dovetail.prompt.clean import Cleaner, Stability
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

_Mark = tuple[int, str]


@dataclass(frozen=True)
class _Known:
    """The closed part of a conversation: the turns as given, and what they became."""

    given: tuple[Turn, ...]
    system: tuple[Block, ...]
    turns: tuple[Turn, ...]
    call_ids: frozenset[str]
    size: int


_NOTHING = _Known((), (), (), frozenset(), 0)


class Stabilizer:
    """Pure in what it gives; what it remembers is bounded by `max_chars` of text.

    Not for use by several threads at once.
    """

    __slots__ = ("_clean", "_known", "_max_chars", "_size")

    def __init__(self, options: Stability | None = None, *, max_chars: int = 64 << 20) -> None:
        self._clean = Cleaner(options or Stability())
        self._known: OrderedDict[_Mark, _Known] = OrderedDict()
        self._max_chars = max_chars
        self._size = 0

    def stabilize(self, request: Request) -> Request:
        """The request without what must not reach the token prefix, its turns in one order."""
        mark, known = self._recall(request.turns)
        try:
            system, turns = self._extend(request.turns, mark, known)
        except LateResult:
            system, turns = self._extend(request.turns, None, _NOTHING)
        own = without_blanks(self._clean.system(request.system))
        return with_turns(request, (*own, *system), turns)

    def _extend(
        self, given: tuple[Turn, ...], mark: _Mark | None, known: _Known
    ) -> tuple[tuple[Block, ...], tuple[Turn, ...]]:
        """System blocks and turns of a history that begins with what is known."""
        clean = self._clean.turn
        system, begin = (known.system, len(known.given)) if mark else leading(given, clean)
        arrangement = Arrangement(begin, known.call_ids)
        for at in range(begin, len(given)):
            arrangement.add(at, clean(given[at]))
        done, at, last = arrangement.split()
        turns = (*known.turns, *done)
        if done and not arrangement.late:  # else what is closed depends on turns behind it
            ids = known.call_ids | arrangement.call_ids()
            size = known.size + sum(map(_size, given[len(known.given) : at]))
            self._remember(mark, given, _Known(given[:at], system, turns, ids, size))
        return system, (*turns, *last)

    def _recall(self, given: tuple[Turn, ...]) -> tuple[_Mark | None, _Known]:
        """The longest remembered beginning of this history, and its mark."""
        for at in range(len(given) - 1, 0, -1):
            if given[at].role == "assistant":
                mark = _mark(at, given[at])
                known = self._known.get(mark)
                if known is not None and known.given == given[:at]:
                    self._known.move_to_end(mark)
                    return mark, known
        return None, _NOTHING

    def _remember(self, old: _Mark | None, given: tuple[Turn, ...], known: _Known) -> None:
        """Keeps it in place of what it grew from."""
        at = len(known.given)
        mark = _mark(at, given[at])
        for gone in (old, mark):
            if gone is not None:
                self._size -= self._known.pop(gone, _NOTHING).size
        self._known[mark] = known
        self._size += known.size
        while self._size > self._max_chars:
            self._size -= self._known.popitem(last=False)[1].size


def _mark(at: int, turn: Turn) -> _Mark:
    """A key for the history before this assistant turn. Equality decides, so it may collide."""
    said = ""
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock):
            return at, block.id
        if isinstance(block, TextBlock | ReasoningBlock):
            said = said or block.text[:64]
    return at, said


def _size(turn: Turn) -> int:
    return _chars(turn.blocks)


def _chars(blocks: Iterable[Block]) -> int:
    """Characters held by these blocks, and something for the objects themselves."""
    total = 0
    for block in blocks:
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                total += len(text)
            case ToolCallBlock(arguments=text):
                total += len(text)
            case ImageBlock(data=data):
                total += len(data or "")
            case DocumentBlock(data=data, text=text):
                total += len(data or "") + len(text or "")
            case ToolResultBlock(blocks=inner):
                total += _chars(inner)
        total += 200
    return total
