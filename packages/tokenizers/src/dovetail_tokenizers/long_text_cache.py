"""A cache of the ids of long texts.

Sessions of one harness start with the same system text and tools, which take tens of thousands of
tokens, and a conversation that is rendered again repeats its history. Such texts are cached and
compared in full: a wrong prompt is worse than a slow one.

All tenants may share a cache, since an entry is found only with exactly the same text. The time of
an encoding can reveal at most that some client sent that text before.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from sys import getsizeof
from threading import Lock
from typing import Literal
from zlib import crc32

MIN_LONG_CHARS = 512  # shorter texts are not worth an entry
MAX_BYTES = 64 * 2**20
MIN_PIECE_CHARS = 4096
SOFT_MAX_PIECE_CHARS = 4 * MIN_PIECE_CHARS  # a longer piece may end inside a line
SPLIT_LINE_INTERVAL = 8  # one line in this many may start a piece

_ENTRY_OVERHEAD_BYTES = 300  # per entry, in addition to its text and ids
# A text may be split at a line break between such a character ...
_SPLITTABLE_BEFORE = frozenset(map(chr, range(0x21, 0x7F)))
_SPLITTABLE_AFTER = _SPLITTABLE_BEFORE - {"/"}  # ... and such a character.

EncodeMode = Literal["words", "first", "later"]
CacheKey = tuple[EncodeMode, str]


class LongTextCache:
    """Ids by text, limited by the bytes of both; the least recently used entry is evicted first.

    Thread-safe: at worst two threads encode the same text.
    """

    __slots__ = ("_entries", "_lock", "_max_bytes", "_size")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, array[int]] = OrderedDict()
        self._lock = Lock()
        self._size = 0

    @property
    def size(self) -> int:
        """Number of bytes in the cache."""
        return self._size

    def get(self, mode: EncodeMode, text: str) -> "array[int] | None":
        """Return the ids of a text, which must not be modified; None if they are not cached.

        `mode` is how the text was encoded: word by word, or by its position in a prompt.
        """
        key = (mode, text)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
            return known

    def put(self, mode: EncodeMode, text: str, ids: Iterable[int]) -> "array[int]":
        """Pack the ids, and cache them if the text is long but not too large for the cache."""
        key, made = (mode, text), array("I", ids)
        size = _size_of(key, made)
        if len(text) < MIN_LONG_CHARS or size > self._max_bytes // 4:
            return made
        with self._lock:
            if key not in self._entries:
                self._entries[key] = made
                self._size += size
            while self._size > self._max_bytes:
                self._size -= _size_of(*self._entries.popitem(last=False))
        return made


def split_text(
    text: str,
    min_chars: int = MIN_PIECE_CHARS,
    interval: int = SPLIT_LINE_INTERVAL,
    soft_max_chars: int = SOFT_MAX_PIECE_CHARS,
) -> Iterator[str]:
    """Split a long text into pieces of complete lines with at least `min_chars` characters.

    Each piece splits into the same words as within the whole text. In all patterns of `words`, no
    word continues after a single line break, except with a slash, and no word before it depends
    on what follows. The same holds before a single space between two letters: very long lines are
    split there.

    The beginning of a line determines whether a piece may start there. Therefore the pieces
    coincide again soon after a changed line: if only the first line of a text differs, most of
    its pieces are still cached.
    """
    start = 0
    while len(text) - start >= 2 * min_chars and (
        end := _next_split(text, start + min_chars, interval, soft_max_chars)
    ):
        yield text[start:end]
        start = end
    yield text[start:]


def _next_split(text: str, start: int, interval: int, soft_max_chars: int) -> int:
    """Return the first position at or after `start` where a text may be split; 0 if none."""
    reach = min(start + soft_max_chars, len(text) - 1)
    return _line_end(text, start, reach, interval) or _word_end(text, reach)


def _word_end(text: str, start: int) -> int:
    at = text.find(" ", start, -1)
    while at >= 0:
        if text[at - 1].isalpha() and text[at + 1].isalpha():
            return at
        at = text.find(" ", at + 1, -1)
    return 0


def _line_end(text: str, start: int, reach: int, interval: int) -> int:
    at = text.find("\n", start, reach)
    while at >= 0:
        if (
            text[at - 1] in _SPLITTABLE_BEFORE
            and text[at + 1] in _SPLITTABLE_AFTER
            and _digest(text, at + 1) % interval == 0
        ):
            return at + 1
        at = text.find("\n", at + 1, reach)
    return 0


def _digest(text: str, at: int) -> int:
    """Return a checksum of the beginning of the line at this position."""
    return crc32(text[at : at + 32].encode("utf-8", "replace"))


def _size_of(key: CacheKey, ids: "array[int]") -> int:
    return getsizeof(key[1]) + getsizeof(ids) + _ENTRY_OVERHEAD_BYTES
