"""A cache of the ids of long texts.

Sessions of one harness begin with the same system text and the same tools, tens of thousands of
tokens of them, and a conversation that is rendered anew repeats all of its history. Such texts are
cached whole, and compared whole: a wrong prompt is worse than a slow one.

All tenants may share a cache: an entry is only found with the very same text. The time that
encoding takes can reveal at most that somebody had that text before.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from sys import getsizeof
from threading import Lock
from typing import Literal
from zlib import crc32

MIN_LONG_CHARS = 2048  # shorter texts are not worth an entry
MAX_BYTES = 64 * 2**20
MIN_PIECE_CHARS = 2 * MIN_LONG_CHARS
SOFT_MAX_PIECE_CHARS = 4 * MIN_PIECE_CHARS  # characters behind which it need not end with a line
SPLIT_LINE_INTERVAL = 8  # one line of so many may begin a piece

_ENTRY_OVERHEAD_BYTES = 300  # bytes that an entry takes besides its text and its ids
_SPLITTABLE_BEFORE = frozenset(
    map(chr, range(0x21, 0x7F))
)  # a line break that a text may be cut behind
_SPLITTABLE_AFTER = _SPLITTABLE_BEFORE - {"/"}

EncodeMode = Literal["words", "first", "later"]
CacheKey = tuple[EncodeMode, str]


class LongTextCache:
    """Ids by text, bounded by the bytes of both; the least recently used are evicted first.

    Threads may share one: at worst a text is encoded twice.
    """

    __slots__ = ("_entries", "_lock", "_max_bytes", "_size")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, array[int]] = OrderedDict()
        self._lock = Lock()
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes in the cache."""
        return self._size

    def get(self, mode: EncodeMode, text: str) -> "array[int] | None":
        """The ids of a text, which must not be changed; None if they are not cached.

        `mode` says how it was encoded: by its words, or by its position in a prompt.
        """
        key = (mode, text)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
            return known

    def put(self, mode: EncodeMode, text: str, ids: Iterable[int]) -> "array[int]":
        """Pack the ids, and cache them if the text is long, but not too large for the cache."""
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
    """Split a long text into pieces of lines, of at least so many characters.

    Each is split into words as it would be inside the whole. None of the patterns of `words` lets a
    word go on behind a single line break, but for a slash; nor does a word before it depend on
    what follows. The same holds before a single space between two letters: very long lines are
    split there.

    What a line begins with says whether a piece may begin there. So behind a line that is new the
    pieces are soon the same again: a text that differs in its first line is known but for that.
    """
    start = 0
    while len(text) - start >= 2 * min_chars and (
        end := _next_split(text, start + min_chars, interval, soft_max_chars)
    ):
        yield text[start:end]
        start = end
    yield text[start:]


def _next_split(text: str, start: int, interval: int, soft_max_chars: int) -> int:
    """The first position from here on where a text may be split; 0 if there is none."""
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
    """A number made of the beginning of the line here."""
    return crc32(text[at : at + 32].encode("utf-8", "replace"))


def _size_of(key: CacheKey, ids: "array[int]") -> int:
    return getsizeof(key[1]) + getsizeof(ids) + _ENTRY_OVERHEAD_BYTES
