"""The step from a request as it came to one whose token prefix stays what it was.

Cost is bounded by what is new: of each conversation the arrangement of its closed exchanges is
remembered, and a longer history that begins with the same turns goes on from there. The comparison
is one of tuples: for turns that are the same objects it costs nanoseconds, for equal ones a memcmp,
and turns that were made here (a tool turn out of a user's) come out as the same objects each time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from dovetail.prompt.turn_order import (
    LateResultError,
    TurnSequencer,
    drop_blank_text,
    replace_turns,
    split_leading_system,
)
from dovetail.prompt.volatile_text import NormalizationOptions, TextCleaner
from dovetail.storage.lru import LruCache
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

_HistoryKey = tuple[int, str]


@dataclass(frozen=True)
class _NormalizedHistory:
    """The closed part of a conversation: the turns as given, and what they became."""

    original_turns: tuple[Turn, ...]
    system: tuple[Block, ...]
    turns: tuple[Turn, ...]
    call_ids: frozenset[str]
    chars: int


_EMPTY_HISTORY = _NormalizedHistory((), (), (), frozenset(), 0)


class PromptNormalizer:
    """Pure in what it gives; what it remembers is bounded by `max_chars` of text.

    Not for use by several threads at once.
    """

    __slots__ = ("_cleaner", "_histories")

    def __init__(
        self, options: NormalizationOptions | None = None, *, max_chars: int = 64 << 20
    ) -> None:
        self._cleaner = TextCleaner(options or NormalizationOptions())
        self._histories: LruCache[_HistoryKey, _NormalizedHistory] = LruCache(
            max_size=max_chars, size_of=attrgetter("chars")
        )

    def normalize(self, request: Request) -> Request:
        """The request without what must not reach the token prefix, its turns in one order."""
        mark, known = self._find_longest(request.turns)
        try:
            system, turns = self._extend(request.turns, mark, known)
        except LateResultError:
            system, turns = self._extend(request.turns, None, _EMPTY_HISTORY)
        own = drop_blank_text(self._cleaner.clean_system(request.system))
        return replace_turns(request, (*own, *system), turns)

    def _extend(
        self, given: tuple[Turn, ...], mark: _HistoryKey | None, known: _NormalizedHistory
    ) -> tuple[tuple[Block, ...], tuple[Turn, ...]]:
        """System blocks and turns of a history that begins with what is known."""
        clean = self._cleaner.clean_turn
        system, begin = (
            (known.system, len(known.original_turns))
            if mark
            else split_leading_system(given, clean)
        )
        arrangement = TurnSequencer(begin, known.call_ids)
        for at in range(begin, len(given)):
            arrangement.add(at, clean(given[at]))
        done, at, last = arrangement.split()
        turns = (*known.turns, *done)
        if (
            done and not arrangement.has_late_result
        ):  # else what is closed depends on turns behind it
            ids = known.call_ids | arrangement.call_ids()
            size = known.chars + sum(map(_turn_chars, given[len(known.original_turns) : at]))
            self._remember(mark, given, _NormalizedHistory(given[:at], system, turns, ids, size))
        return system, (*turns, *last)

    def _find_longest(
        self, given: tuple[Turn, ...]
    ) -> tuple[_HistoryKey | None, _NormalizedHistory]:
        """The longest remembered beginning of this history, and its mark."""
        for at in range(len(given) - 1, 0, -1):
            if given[at].role == "assistant":
                mark = _history_key(at, given[at])
                known = self._histories.peek(mark)
                if known is not None and known.original_turns == given[:at]:
                    self._histories.get(mark)  # used, now that it is known to fit
                    return mark, known
        return None, _EMPTY_HISTORY

    def _remember(
        self, old: _HistoryKey | None, given: tuple[Turn, ...], known: _NormalizedHistory
    ) -> None:
        """Keeps it in place of what it grew from."""
        at = len(known.original_turns)
        mark = _history_key(at, given[at])
        if old is not None:
            self._histories.pop(old)
        self._histories.put(mark, known)


def _history_key(index: int, turn: Turn) -> _HistoryKey:
    """A key for the history before this assistant turn. Equality decides, so it may collide."""
    said = ""
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock):
            return index, block.id
        if isinstance(block, TextBlock | ReasoningBlock):
            said = said or block.text[:64]
    return index, said


def _turn_chars(turn: Turn) -> int:
    return _count_chars(turn.blocks)


def _count_chars(blocks: Iterable[Block]) -> int:
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
                total += _count_chars(inner)
        total += 200
    return total


def normalize_prompt(request: Request, options: NormalizationOptions | None = None) -> Request:
    """One request, nothing remembered. A server keeps a `Stabilizer`."""
    return PromptNormalizer(options).normalize(request)
