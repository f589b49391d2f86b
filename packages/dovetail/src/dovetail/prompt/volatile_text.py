"""Text that changes from request to request and says nothing the model needs: running counters.

A pattern is a regular expression; what it matches is removed. It is tried on system text, and in a
user's turn only inside reminders, the elements that harnesses put there (`<system-reminder>`): what
a user wrote or a tool returned is never touched. `^` and `$` match at every line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_

from dovetail.storage.lru import LruCache
from dovetail_model import Block, TextBlock, Turn

_NUMBER = r"-?\$?\d[\d,.]*[kKmM]?"
_COUNTER_PATTERNS = (
    rf"(?:Token usage|USD budget): {_NUMBER}/{_NUMBER}; {_NUMBER} remaining",
    r"Output tokens \S turn: [^\n]{1,80}",
    rf"(?:Tokens|Context) (?:used|usage|left|remaining): {_NUMBER}%?(?: ?/ ?{_NUMBER})?",
    rf"(?:Used|Remaining) tokens: {_NUMBER}(?: ?/ ?{_NUMBER})?",
)

DEFAULT_PATTERNS: tuple[str, ...] = tuple(
    # A counter alone on its line, or alone in its reminder: then the reminder goes too.
    rf"^(?:<(system-reminder|system_warning)>\s*)?{counter}[ \t]*(?(1)\s*</\1>)$"
    for counter in _COUNTER_PATTERNS
)

_REMINDER_OPENER = re.compile(r"^[ \t]*<(system-reminder|system_warning)>", re.M)
_REMINDER_PREFIX = "<system"


class InvalidPatternError(ValueError):
    """A pattern that is no regular expression, or one that would match everywhere."""


class VolatilePatterns:
    """The patterns, compiled."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str] = DEFAULT_PATTERNS) -> None:
        self._patterns = tuple(_compile_pattern(pattern) for pattern in patterns)

    def strip_system(self, text: str) -> str:
        """System text without what varies. The same object where nothing does."""
        for pattern in self._patterns:
            text = _remove_matches(text, list(pattern.finditer(text)))
        return text

    def strip_user(self, text: str) -> str:
        """A user's text without what varies in the reminders inside it."""
        if _REMINDER_PREFIX not in text:
            return text
        for pattern in self._patterns:
            found = [
                m
                for start, end in _find_reminders(text)
                for m in pattern.finditer(text, start, end)
            ]
            text = _remove_matches(text, found)
        return text


def _find_reminders(text: str) -> Iterator[tuple[int, int]]:
    """Where reminders stand. Each closer is looked for once: openers without one are cheap."""
    at, none_left = 0, set[str]()
    while (opener := _REMINDER_OPENER.search(text, at)) is not None:
        closer = f"</{opener[1]}>"
        end = -1 if closer in none_left else text.find(closer, opener.end())
        if end < 0:
            none_left.add(closer)
            at = opener.end()
        else:
            at = end + len(closer)
            yield opener.start(), at


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.M)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidPatternError(f"volatile pattern {pattern!r}: {error}") from error
    if compiled.search("") is not None:
        raise InvalidPatternError(f"volatile pattern {pattern!r}: it matches empty text")
    return compiled


def _remove_matches(text: str, found: Sequence[re.Match[str]]) -> str:
    """The text without the matches. A line that was nothing else goes with its line break."""
    if not found:
        return text
    kept: list[str] = []
    end = 0
    last_line = False
    for match in found:
        start, stop = match.span()
        alone = start == 0 or text[start - 1] == "\n"
        last_line = alone and stop == len(text)
        kept.append(text[end:start])
        end = stop + (alone and text[stop : stop + 1] == "\n")
    kept.append(text[end:])
    joined = "".join(kept)
    return joined.removesuffix("\n") if last_line else joined


_BILLING_HEADER = "x-anthropic-billing-header:"

# `key=value;` any number of times. A last field that ends the line may lack its semicolon.
_BILLING_FIELDS = re.compile(r"(?:[ \t]*[\w.-]+=[^;\n]*;)+(?:[ \t]*[\w.-]+=\S*[ \t]*\r?$)?", re.M)


def strip_preamble(text: str) -> str:
    """The text without the billing line it begins with, if it does.

    What follows the last field on the same line is kept, and so is everything behind the line.
    """
    if not text.startswith(_BILLING_HEADER):
        return text
    fields = _BILLING_FIELDS.match(text, len(_BILLING_HEADER))
    if fields is not None:
        return text[fields.end() :].lstrip()
    _, _, rest = text.partition("\n")
    return rest.lstrip()


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
        self._cache: LruCache[str, str] = LruCache(_MAX_CACHED_TEXTS)

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
        clean = self._cache.get(text)
        if clean is None:
            clean = self._clean_system_text(text)
            self._cache.put(text, clean)
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
