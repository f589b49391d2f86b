"""Texts cut here are cut as the library cuts them, and what cannot be is left to it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from real_tokenizers import available, brief, folder
from tokenizers.pre_tokenizers import Sequence, Split

from dovetail_tokenizers import HfTokenizer, patterns
from dovetail_tokenizers.words import SUPPORTED_PATTERNS, Patterns, WordEncoder, read_pre_tokenizer

NAMES = {
    value: name
    for name, value in vars(patterns).items()
    if name.isupper() and name != "FALCON" and isinstance(value, str | tuple)
}
KINDS = [pytest.param(one, id=NAMES.get(one) or NAMES[one[0]]) for one in SUPPORTED_PATTERNS]
HF = [name for name in available() if (folder(name) / "tokenizer.json").exists()] or ["qwen3"]
PIECES = ["word", " the", "\n", "\r\n\n", "  ", "\t", "'S", "'ll", "'ſ", "12345", "</", "/", "\n/"]
PIECES += ["É", "e\u0301", "漢字", "かな", "🦜", "→", "Ǆ", "ʰ", "\x85", "\x1c", "٣", "½", "\u200d"]


def words(cuts: Patterns, form: Any = None) -> WordEncoder:
    """Words of characters: each word's tokens are the code points in it, then a mark."""
    return WordEncoder(cuts, form, lambda word: [*map(ord, word), -1], added=["<tool>", "é!"])


def flat(cut: list[str]) -> list[int]:
    return [id for word in cut for id in (*map(ord, word), -1)]


@cache
def library(cuts: Patterns) -> Sequence:
    return Sequence([Split(tokenizers.Regex(pattern), "isolated") for pattern in cuts])


def cut_by_library(cuts: Patterns, text: str) -> list[str]:
    return [piece for piece, _ in library(cuts).pre_tokenize_str(text)]


@pytest.mark.parametrize("cuts", KINDS)
def test_every_character_is_of_the_kind_that_the_library_takes_it_for(cuts: Patterns) -> None:
    encoder, cut = words(cuts), 0
    for start in range(0, 0x20000, 256):
        if 0xD800 <= start < 0xE000:
            continue
        known = [c for c in map(chr, range(start, start + 256)) if encoder.encode(c) is not None]
        cut += len(known)
        text = "".join(f"a{c}B1{c} {c}\n{c}' {c}{c}" for c in known)
        assert encoder.encode(text) == flat(cut_by_library(cuts, text)), hex(start)
    assert cut > 40_000


@pytest.mark.parametrize("cuts", KINDS)
@settings(max_examples=60)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12))
def test_a_text_is_cut_as_by_the_library(cuts: Patterns, pieces: list[str]) -> None:
    text = "".join(pieces)
    found = words(cuts).encode(text)
    assert found is None or found == flat(cut_by_library(cuts, text))


@pytest.mark.parametrize(
    ("text", "form", "known"),
    [
        ("plain é → 漢字 🚀", None, True),
        ("🦜", None, False),
        ("e\u0301", None, True),
        ("e\u0301", "NFC", False),
        ("é", "NFC", True),
        ("é", "NFD", False),
        ("a <tool> b", None, False),
        ("a <tool b", None, True),
        ("e\u0301!", "NFC", False),
        ("'\u017f", None, False),
        ("\U00020000", None, False),
        ("\ud800", None, False),
        ("\u0378", None, False),
    ],
)
def test_what_the_library_has_to_say_is_left_to_it(text: str, form: Any, known: bool) -> None:
    assert (words((patterns.QWEN2,), form).encode(text) is not None) == known


def test_no_more_words_are_remembered_than_are_wanted() -> None:
    asked: list[str] = []

    def merge(word: str) -> list[int]:
        asked.append(word)
        return [0]

    encoder = WordEncoder((patterns.GPT2,), None, merge)
    for _ in range(2):
        assert encoder.encode("one two" + "!" * 100) == [0, 0, 0]
    assert asked == ["one", " two", "!" * 100, "!" * 100]
    many = " ".join(f"{chr(97 + n % 26)}{'x' * (n // 26 % 50)}{'y' * (n // 1300)}"
                    for n in range(70_000))  # fmt: skip
    assert encoder.encode(many) == encoder.encode(many)
    assert len(encoder._cache) <= 1 << 16


@pytest.mark.parametrize("name", HF)
def test_the_kinds_of_vocabularies_that_are_cut_here(name: str) -> None:
    definition = json.loads((folder(name) / "tokenizer.json").read_bytes())
    assert (read_pre_tokenizer(definition) is not None) == (name != "gemma3")
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": None},
        {"model": {**definition["model"], "dropout": 0.1}},
        {"model": {"type": "Unigram"}},
    ):
        assert read_pre_tokenizer({**definition, **change}) is None


@pytest.mark.parametrize("name", brief(HF))
def test_real_texts_are_what_the_library_makes_of_them(name: str) -> None:
    path = folder(name) / "tokenizer.json"
    bare = tokenizers.Tokenizer.from_file(str(path))
    tokenizer = HfTokenizer.from_file(path)
    for source in sorted(Path(json.__file__).parent.parent.glob("a*.py")):
        text = source.read_text(encoding="utf-8", errors="replace")
        numbered = "".join(f"{n:6}→{line}" for n, line in enumerate(text.splitlines(True)))
        for shown in (text, numbered):
            assert tokenizer.encode(shown) == bare.encode(shown, add_special_tokens=False).ids
