"""Split text into words by the vocabulary's patterns, and cache the tokens of each word.

Byte-pair merges never cross a word boundary, and words recur. Therefore each word is encoded by the
library once and its tokens are cached; encoding a text then costs splitting it and one lookup per
word, a fraction of the library's time.

The words must equal the library's on every text. Hence this module supports only patterns that the
tests compare with the library on every character, and only characters whose category never changed
between versions of Unicode. It leaves all other texts to the library, and also those that are not
in the required normal form or that contain an added token.

Long texts are cached in pieces, and a cached piece is not split at all.
"""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, Final, get_args

from dovetail_tokenizers.control import WHITESPACE
from dovetail_tokenizers.literals import longest_literal_pattern
from dovetail_tokenizers.long_text_cache import SOFT_MAX_PIECE_CHARS, LongTextCache, split_text
from dovetail_tokenizers.normal_form import NormalForm
from dovetail_tokenizers.patterns import (
    DEEPSEEK3,
    GPT2,
    LLAMA3,
    O200K,
    QWEN2,
    QWEN3_5,
    SINGLE_DIGITS,
    TEKKEN,
)

Patterns = tuple[str, ...]
"""Each pattern is applied to the parts left by the previous one."""
SUPPORTED_PATTERNS: Final[tuple[Patterns, ...]] = (
    *((pattern,) for pattern in (GPT2, LLAMA3, O200K, QWEN2, QWEN3_5, TEKKEN)),
    DEEPSEEK3,
    SINGLE_DIGITS,
)
MergeWord = Callable[[str], Iterable[int]]

_MAX_CACHED_WORDS = 1 << 16
_MAX_CACHED_WORD_CHARS = 32  # longer words are not cached
# Splitting a piece and merging one word hold the GIL, so pieces are limited.
_MAX_PIECE_CHARS = 2 * SOFT_MAX_PIECE_CHARS
_SET_OR_CATEGORY = re.compile(r"\[(\^?)((?:[^\]\\]|\\.)+)\]|\\(?:p\{\w+\}|s|S)")
_CATEGORY = re.compile(r"\\p\{(\w+)\}|\\s")
# The most frequent symbols that were added later: above U+FFFF, all in Unicode 10 or earlier, ...
_PICTOGRAPHS = (
    r"\U0001f300-\U0001f64f\U0001f680-\U0001f6c5\U0001f6e0-\U0001f6ec\U0001f910-\U0001f91e"
    r"\U0001f920-\U0001f927\U0001f933-\U0001f93e\U0001f980-\U0001f991\U0001f9d0-\U0001f9e6"
)
# ... and up to U+FFFF, all in Unicode 7 or earlier.
_LATE_SYMBOLS = frozenset((*range(0x23E9, 0x23F4), *range(0x2600, 0x27C0), 0x2B50, 0x2B55))


class WordEncoder:
    """Encodes the texts that can be split into words here."""

    __slots__ = ("_added", "_cache", "_normal_form", "_split_patterns", "_split_text", "_unstable")

    def __init__(
        self,
        patterns: Patterns,
        form: NormalForm | None,
        merge: MergeWord,
        added: Iterable[str] = (),
    ) -> None:
        """`merge` returns the tokens of one word; `added` are tokens that text may spell."""
        self._split_patterns = [compile_pattern(pattern) for pattern in patterns]
        self._unstable = re.compile(f"[^{_stable_characters()}]")
        self._normal_form = form
        spellings = {s for text in added for s in (text, _normalize(form, text))}
        self._added = longest_literal_pattern(spellings)
        self._cache = _WordCache(merge)
        # An added token could span a line break or a space; in that case texts are not split.
        self._split_text = (
            _single_piece if any({*spelling} & {*"\n "} for spelling in spellings) else split_text
        )

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a text; None if it is left to the library."""
        if not text.isascii() and not self._is_plain(text):
            return None
        if self._added.search(text):
            return None
        words: Iterable[str] = (text,)
        for pattern in self._split_patterns:
            words = filter(None, chain.from_iterable(map(pattern.split, words)))
        return list(chain.from_iterable(map(self._cache.__getitem__, words)))

    def encode_long(self, text: str, cache: LongTextCache) -> Iterable[int] | None:
        """Like `encode`, using cached ids of the text's pieces."""
        parts = list(self._split_text(text))
        if max(map(len, parts)) > _MAX_PIECE_CHARS:
            return None
        if len(parts) == 1:
            return self.encode(text)
        ids = array("I")
        for part in parts:
            known = cache.get("words", part)
            if known is None:
                made = self.encode(part)
                if made is None:
                    return None
                known = cache.put("words", part, made)
            ids += known
        return ids

    def _is_plain(self, text: str) -> bool:
        if self._unstable.search(text):
            return False
        return self._normal_form is None or unicodedata.is_normalized(self._normal_form, text)


class _WordCache(dict[str, tuple[int, ...]]):
    """The tokens of words, merged on first use."""

    __slots__ = ("_merge",)

    def __init__(self, merge: MergeWord) -> None:
        self._merge = merge

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._merge(word))
        if len(word) <= _MAX_CACHED_WORD_CHARS:
            if len(self) >= _MAX_CACHED_WORDS:
                self.clear()  # later texts fill it again, at the cost of the library
            self[word] = ids
        return ids


def read_pre_tokenizer(definition: Mapping[str, Any]) -> tuple[Patterns, NormalForm | None] | None:
    """Read the patterns and normal form of a `tokenizer.json`; None if it needs other steps."""
    normalizer = definition.get("normalizer") or {"type": None}
    form = normalizer["type"]
    if form not in (None, *get_args(NormalForm)) and normalizer.get("normalizers") != []:
        return None
    model = definition["model"]
    marks = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    if model.get("type") != "BPE" or any(model.get(mark) for mark in marks):
        return None
    patterns = _read_patterns(definition.get("pre_tokenizer") or {})
    return (
        None
        if patterns not in SUPPORTED_PATTERNS
        else (patterns, form if form != "Sequence" else None)
    )


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Convert a pattern of the library for `re.split`, with character categories expanded."""
    return re.compile(f"({_SET_OR_CATEGORY.sub(_expand_class, pattern)})")


def _read_patterns(steps: Mapping[str, Any]) -> Patterns:
    """Return the patterns that split texts into words; empty if there are other steps."""
    match steps:
        case {"type": "ByteLevel", "add_prefix_space": False} if steps.get("use_regex", True):
            return (GPT2,)
        case {
            "type": "Sequence",
            "pretokenizers": [
                *splits,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return tuple(map(_read_pattern, splits))
    return ()


def _read_pattern(split: Mapping[str, Any]) -> str:
    """Return the pattern of one step, with escaped line breaks; empty for other steps."""
    match split:
        case {
            "type": "Split",
            "pattern": {"Regex": str(pattern)},
            "behavior": "Isolated",
            "invert": False,
        }:
            return pattern.replace("\r", r"\r").replace("\n", r"\n")
    return ""


def _expand_class(found: re.Match[str]) -> str:
    negated, inside = found.groups()
    if inside is not None:
        return f"[{negated}{_CATEGORY.sub(_expand_category, inside)}]"
    if found[0] == r"\S":
        return f"[^{_whitespace_class()}]"
    return f"[{_CATEGORY.sub(_expand_category, found[0])}]"


def _expand_category(kind: re.Match[str]) -> str:
    """Return the characters of a category, as the content of a character class."""
    if kind[1] is None:
        return _whitespace_class()
    return "".join(
        ranges for name, ranges in _category_ranges().items() if name.startswith(kind[1])
    )


def _whitespace_class() -> str:
    return re.escape(WHITESPACE)


def _stable_characters() -> str:
    return "".join(_category_ranges().values())


@cache
def _category_ranges() -> dict[str, str]:
    """Return character ranges by category, of characters unchanged since Unicode 3.2.

    Only up to U+FFFF: classes with many ranges above it are slow. U+017F is excluded because it
    matches `s` if case is ignored.
    """
    kinds: dict[str, list[str]] = {}
    last, start = "", 0
    for code in range(0x10001):
        name = _category(code)
        if name != last:
            if last:
                kinds.setdefault(last, []).append(rf"\u{start:04x}-\u{code - 1:04x}")
            last, start = name, code
    kinds["So"].append(_PICTOGRAPHS)
    return {name: "".join(ranges) for name, ranges in kinds.items()}


def _category(code: int) -> str:
    """Return the category of a character; empty if it is not stable."""
    name = unicodedata.category(chr(code))
    was = unicodedata.ucd_3_2_0.category(chr(code))
    if was == "Cn" and code in _LATE_SYMBOLS:
        was = name
    odd = name != was or name in ("Cn", "Cs") or code in (0x017F, 0x10000)
    return "" if odd else name


def _single_piece(text: str) -> Iterator[str]:
    yield text


def _normalize(form: NormalForm | None, text: str) -> str:
    return text if form is None else unicodedata.normalize(form, text)
