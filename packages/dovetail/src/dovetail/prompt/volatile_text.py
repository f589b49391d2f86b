"""Remove text that changes with every request and that the model does not need.

This text consists of token and cost counters and the billing line of Claude Code. A pattern is a
regular expression whose matches are removed. It applies to system text and, in a user turn, only to
reminders, which are elements that harnesses insert (`<system-reminder>`). Text of a user or a tool
is never changed. `^` and `$` match at every line.
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
    # A counter alone on its line, or alone in its reminder, which is then removed with it.
    rf"^(?:<(system-reminder|system_warning)>\s*)?{counter}[ \t]*(?(1)\s*</\1>)$"
    for counter in _COUNTER_PATTERNS
)

_REMINDER_OPENER = re.compile(r"^[ \t]*<(system-reminder|system_warning)>", re.M)
_REMINDER_PREFIX = "<system"


class InvalidPatternError(ValueError):
    """A pattern that is not a valid regular expression or that matches empty text."""


class VolatilePatterns:
    """Compiled patterns of volatile text."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str] = DEFAULT_PATTERNS) -> None:
        self._patterns = tuple(_compile_pattern(pattern) for pattern in patterns)

    def strip_system(self, text: str) -> str:
        """Remove volatile text from system text. Returns the same object if there is none."""
        for pattern in self._patterns:
            text = _remove_matches(text, list(pattern.finditer(text)))
        return text

    def strip_user(self, text: str) -> str:
        """Remove volatile text from the reminders in a user text."""
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
    """Find reminders. A missing closer is searched only once, so that openers stay cheap."""
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
        raise InvalidPatternError(f"invalid volatile pattern {pattern!r}: {error}") from error
    if compiled.search("") is not None:
        raise InvalidPatternError(f"invalid volatile pattern {pattern!r}: it matches empty text")
    return compiled


def _remove_matches(text: str, found: Sequence[re.Match[str]]) -> str:
    """Remove matches from a text, and lines that become empty with their line breaks."""
    if not found:
        return text
    parts: list[str] = []
    end = 0
    last_line = False
    for match in found:
        start, stop = match.span()
        alone = start == 0 or text[start - 1] == "\n"
        last_line = alone and stop == len(text)
        parts.append(text[end:start])
        end = stop + (alone and text[stop : stop + 1] == "\n")
    parts.append(text[end:])
    joined = "".join(parts)
    return joined.removesuffix("\n") if last_line else joined


_BILLING_HEADER = "x-anthropic-billing-header:"

# Any number of `key=value;`. The last field of the line may lack its semicolon.
_BILLING_FIELDS = re.compile(r"(?:[ \t]*[\w.-]+=[^;\n]*;)+(?:[ \t]*[\w.-]+=\S*[ \t]*\r?$)?", re.M)


def strip_preamble(text: str) -> str:
    """Remove the billing line at the beginning of a text, if there is one.

    Text after the last field on the same line is preserved, and so are all other lines.
    """
    if not text.startswith(_BILLING_HEADER):
        return text
    fields = _BILLING_FIELDS.match(text, len(_BILLING_HEADER))
    if fields is not None:
        return text[fields.end() :].lstrip()
    _, _, rest = text.partition("\n")
    return rest.lstrip()


_MAX_CACHED_TEXTS = 64  # system texts; each harness and version has a few
_MAX_CACHED_TEXT_CHARS = 1 << 20


@dataclass(frozen=True)
class NormalizationOptions:
    """The text to remove. `volatile`: regular expressions as described in this module."""

    strip_preamble: bool = True
    volatile: tuple[str, ...] = DEFAULT_PATTERNS


class TextCleaner:
    """Removes the billing line and volatile text. Creation raises `InvalidPatternError`."""

    __slots__ = ("_cache", "_strip_preamble", "_volatile")

    def __init__(self, options: NormalizationOptions) -> None:
        self._strip_preamble = options.strip_preamble
        self._volatile = VolatilePatterns(options.volatile)
        self._cache: LruCache[str, str] = LruCache(_MAX_CACHED_TEXTS)

    def clean_system(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Clean the blocks of a system prompt, cached because it is long and repeated."""
        return _map_texts(blocks, self._clean_cached)

    def clean_turn(self, turn: Turn) -> Turn:
        """Clean a turn. Returns the same object if it is unchanged."""
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
    """Clean each text of the blocks. Returns the same tuple if all are unchanged."""
    mapped = tuple(_map_text(block, clean) for block in blocks)
    return blocks if all(map(is_, mapped, blocks)) else mapped


def _map_text(block: Block, clean: Callable[[str], str]) -> Block:
    if not isinstance(block, TextBlock):
        return block
    text = clean(block.text)
    return block if text == block.text else TextBlock(text)
