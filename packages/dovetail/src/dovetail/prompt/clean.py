"""What is taken out of single texts, before turns are arranged."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_

from dovetail.prompt.preamble import strip_preamble
from dovetail.prompt.volatile_text import DEFAULT_PATTERNS, VolatilePatterns
from dovetail_model import Block, TextBlock, Turn

_MAX_CACHED_TEXTS = 64  # system texts: a few per harness and version
_MAX_CACHED_TEXT_CHARS = 1 << 20  # characters of one that is remembered


@dataclass(frozen=True)
class NormalizationOptions:
    """What may be taken out. `volatile` are regular expressions, see `volatile.py`."""

    strip_preamble: bool = True
    volatile: tuple[str, ...] = DEFAULT_PATTERNS


class TextCleaner:
    """Takes the billing line and volatile text out. Raises `BadPattern` when it is made."""

    __slots__ = ("_cache", "_strip_preamble", "_volatile")

    def __init__(self, options: NormalizationOptions) -> None:
        self._strip_preamble = options.strip_preamble
        self._volatile = VolatilePatterns(options.volatile)
        self._cache: OrderedDict[str, str] = OrderedDict()

    def clean_system(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The blocks of a system prompt. It is long and comes again and again: remembered."""
        return _map_texts(blocks, self._clean_cached)

    def clean_turn(self, turn: Turn) -> Turn:
        """The turn, the same object where nothing was taken out of it."""
        if turn.role in ("system", "developer"):
            blocks = _map_texts(turn.blocks, self._clean_system_text)
        elif turn.role == "user":
            blocks = _map_texts(turn.blocks, self._volatile.strip_user)
        else:
            return turn
        return turn if blocks is turn.blocks else Turn(turn.role, blocks)

    def _clean_cached(self, text: str) -> str:
        if len(text) > _MAX_CACHED_TEXT_CHARS:
            return self._clean_system_text(text)
        clean = self._cache.pop(text, None)
        if clean is None:
            clean = self._clean_system_text(text)
            while len(self._cache) >= _MAX_CACHED_TEXTS:
                self._cache.popitem(last=False)
        self._cache[text] = clean
        return clean

    def _clean_system_text(self, text: str) -> str:
        return self._volatile.strip_system(strip_preamble(text) if self._strip_preamble else text)


def _map_texts(blocks: tuple[Block, ...], clean: Callable[[str], str]) -> tuple[Block, ...]:
    """The blocks with each text cleaned; the same tuple where all stay as they are."""
    made = tuple(_map_text(block, clean) for block in blocks)
    return blocks if all(map(is_, made, blocks)) else made


def _map_text(block: Block, clean: Callable[[str], str]) -> Block:
    if not isinstance(block, TextBlock):
        return block
    text = clean(block.text)
    return block if text == block.text else TextBlock(text)
