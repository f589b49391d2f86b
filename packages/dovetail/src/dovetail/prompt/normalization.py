"""Normalize requests so that their token prefix stays stable from turn to turn.

The cost depends only on the new turns: the closed exchanges of each conversation are cached in
normalized form, and a longer history that begins with the same turns reuses them. Turns are
compared as tuples, which costs nanoseconds for the same objects and a memcmp for equal ones. Turns
that are created here, such as a tool turn from a user turn, are the same objects each time.
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
    """The closed part of a conversation: the original and the normalized turns."""

    original_turns: tuple[Turn, ...]
    system: tuple[Block, ...]
    turns: tuple[Turn, ...]
    call_ids: frozenset[str]
    chars: int


_EMPTY_HISTORY = _NormalizedHistory((), (), (), frozenset(), 0)


class PromptNormalizer:
    """Normalizes requests: removes volatile text and puts turns in canonical order.

    The result depends only on the request. The cache holds at most `max_chars` of text. Not
    thread-safe.
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
        """Remove volatile text from the prefix and put the turns in canonical order."""
        key, known = self._find_longest(request.turns)
        try:
            system, turns = self._extend(request.turns, key, known)
        except LateResultError:
            system, turns = self._extend(request.turns, None, _EMPTY_HISTORY)
        request_system = drop_blank_text(self._cleaner.clean_system(request.system))
        return replace_turns(request, (*request_system, *system), turns)

    def max_chars(self, request: Request) -> int:
        """Return a number of characters that the texts of a request do not exceed.

        Only turns that are not cached are counted.
        """
        _, known = self._find_longest(request.turns)
        chars = known.chars + _count_chars(request.system)
        chars += sum([len(tool.description) for tool in request.tools])
        return chars + sum(map(_turn_chars, request.turns[len(known.original_turns) :]))

    def _extend(
        self, original: tuple[Turn, ...], key: _HistoryKey | None, known: _NormalizedHistory
    ) -> tuple[tuple[Block, ...], tuple[Turn, ...]]:
        """Return the normalized system blocks and turns of a history that extends a known one."""
        clean = self._cleaner.clean_turn
        system, begin = (
            (known.system, len(known.original_turns))
            if key
            else split_leading_system(original, clean)
        )
        sequencer = TurnSequencer(begin, known.call_ids)
        for at in range(begin, len(original)):
            sequencer.add(at, clean(original[at]))
        done, at, last = sequencer.split()
        turns = (*known.turns, *done)
        if done and not sequencer.has_late_result:  # otherwise closed turns depend on later ones
            ids = known.call_ids | sequencer.call_ids()
            chars = known.chars + sum(map(_turn_chars, original[len(known.original_turns) : at]))
            self._remember(
                key, original, _NormalizedHistory(original[:at], system, turns, ids, chars)
            )
        return system, (*turns, *last)

    def _find_longest(
        self, original: tuple[Turn, ...]
    ) -> tuple[_HistoryKey | None, _NormalizedHistory]:
        """Return the longest cached prefix of this history, and its key."""
        for at in range(len(original) - 1, 0, -1):
            if original[at].role == "assistant":
                key = _history_key(at, original[at])
                known = self._histories.peek(key)
                if known is not None and known.original_turns == original[:at]:
                    self._histories.get(key)  # mark as used only after the comparison
                    return key, known
        return None, _EMPTY_HISTORY

    def _remember(
        self, old_key: _HistoryKey | None, original: tuple[Turn, ...], known: _NormalizedHistory
    ) -> None:
        """Cache a history and remove the one that it extends."""
        at = len(known.original_turns)
        if old_key is not None:
            self._histories.pop(old_key)
        self._histories.put(_history_key(at, original[at]), known)


def _history_key(index: int, turn: Turn) -> _HistoryKey:
    """Return the key of the history before this assistant turn. Keys may collide."""
    text = ""
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock):
            return index, block.id
        if isinstance(block, TextBlock | ReasoningBlock):
            text = text or block.text[:64]
    return index, text


def _turn_chars(turn: Turn) -> int:
    return _count_chars(turn.blocks)


def _count_chars(blocks: Iterable[Block]) -> int:
    """Count the characters of blocks, plus an overhead per object."""
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
    """Normalize one request without a cache. Use a `PromptNormalizer` in servers."""
    return PromptNormalizer(options).normalize(request)
