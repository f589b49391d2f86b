"""What is taken out of single texts, before turns are arranged."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_

from dovetail.prompt.preamble import strip_preamble
from dovetail.prompt.volatile_text import DEFAULT_PATTERNS, Volatile
from dovetail_model import Block, TextBlock, Turn

_REMEMBERED = 64  # system texts: a few per harness and version
_LONGEST = 1 << 20  # characters of one that is remembered


@dataclass(frozen=True)
class Stability:
    """What may be taken out. `volatile` are regular expressions, see `volatile.py`."""

    strip_preamble: bool = True
    volatile: tuple[str, ...] = DEFAULT_PATTERNS


class Cleaner:
    """Takes the billing line and volatile text out. Raises `BadPattern` when it is made."""

    __slots__ = ("_seen", "_strip", "_volatile")

    def __init__(self, options: Stability) -> None:
        self._strip = options.strip_preamble
        self._volatile = Volatile(options.volatile)
        self._seen: OrderedDict[str, str] = OrderedDict()

    def system(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The blocks of a system prompt. It is long and comes again and again: remembered."""
        return _each_text(blocks, self._remembered)

    def turn(self, turn: Turn) -> Turn:
        """The turn, the same object where nothing was taken out of it."""
        if turn.role in ("system", "developer"):
            blocks = _each_text(turn.blocks, self._system_text)
        elif turn.role == "user":
            blocks = _each_text(turn.blocks, self._volatile.from_user)
        else:
            return turn
        return turn if blocks is turn.blocks else Turn(turn.role, blocks)

    def _remembered(self, text: str) -> str:
        if len(text) > _LONGEST:
            return self._system_text(text)
        clean = self._seen.pop(text, None)
        if clean is None:
            clean = self._system_text(text)
            while len(self._seen) >= _REMEMBERED:
                self._seen.popitem(last=False)
        self._seen[text] = clean
        return clean

    def _system_text(self, text: str) -> str:
        return self._volatile.from_system(strip_preamble(text) if self._strip else text)


def _each_text(blocks: tuple[Block, ...], clean: Callable[[str], str]) -> tuple[Block, ...]:
    """The blocks with each text cleaned; the same tuple where all stay as they are."""
    made = tuple(_text(block, clean) for block in blocks)
    return blocks if all(map(is_, made, blocks)) else made


def _text(block: Block, clean: Callable[[str], str]) -> Block:
    if not isinstance(block, TextBlock):
        return block
    text = clean(block.text)
    return block if text == block.text else TextBlock(text)
