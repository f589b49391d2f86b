"""Texts split into words by the `tokenizers` library, for comparison."""

from functools import cache

import pytest
import tokenizers
from tokenizers.pre_tokenizers import Sequence, Split

from dovetail_tokenizers import patterns
from dovetail_tokenizers.words import SUPPORTED_PATTERNS, Patterns

_PATTERN_NAMES = {
    value: name
    for name, value in vars(patterns).items()
    if name.isupper() and name != "FALCON" and isinstance(value, str | tuple)
}
PATTERN_PARAMS = [
    pytest.param(one, id=_PATTERN_NAMES.get(one) or _PATTERN_NAMES[one[0]])
    for one in SUPPORTED_PATTERNS
]
TEXT_PIECES = [
    "word",
    " the",
    "\n",
    "\r\n\n",
    "  ",
    "\t",
    "'S",
    "'ll",
    "'ſ",
    "12345",
    "</",
    "/",
    "\n/",
]
TEXT_PIECES += [
    "É",
    "e\u0301",
    "漢字",
    "かな",
    "🦜",
    "→",
    "Ǆ",
    "ʰ",
    "\x85",
    "\x1c",
    "٣",
    "½",
    "\u200d",
]


@cache
def _library(splits: Patterns) -> Sequence:
    return Sequence([Split(tokenizers.Regex(pattern), "isolated") for pattern in splits])


def split_by_library(splits: Patterns, text: str) -> list[str]:
    return [piece for piece, _ in _library(splits).pre_tokenize_str(text)]
