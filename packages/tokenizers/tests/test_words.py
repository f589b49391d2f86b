"""Texts are split as by the library, and unsupported texts are left to it."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from library_words import PATTERN_PARAMS, TEXT_PIECES, split_by_library
from real_tokenizers import available, brief, folder

from dovetail_tokenizers import HfTokenizer, patterns
from dovetail_tokenizers.words import Patterns, WordEncoder, read_pre_tokenizer

HF = [name for name in available() if (folder(name) / "tokenizer.json").exists()] or ["qwen3"]


def words(splits: Patterns, form: Any = None) -> WordEncoder:
    """An encoder for which a word's tokens are its code points and a separator."""
    return WordEncoder(splits, form, lambda word: [*map(ord, word), -1], added=["<tool>", "é!"])


def flat(words: list[str]) -> list[int]:
    return [id for word in words for id in (*map(ord, word), -1)]


@pytest.mark.parametrize("splits", PATTERN_PARAMS)
def test_every_character_has_the_same_category_as_in_the_library(splits: Patterns) -> None:
    encoder, supported = words(splits), 0
    for start in range(0, 0x20000, 256):
        if 0xD800 <= start < 0xE000:
            continue
        known = [c for c in map(chr, range(start, start + 256)) if encoder.encode(c) is not None]
        supported += len(known)
        text = "".join(f"a{c}B1{c} {c}\n{c}' {c}{c}" for c in known)
        assert encoder.encode(text) == flat(split_by_library(splits, text)), hex(start)
    assert supported > 40_000


@pytest.mark.parametrize("splits", PATTERN_PARAMS)
@settings(max_examples=60)
@given(pieces=st.lists(st.sampled_from(TEXT_PIECES) | st.text(max_size=4), max_size=12))
def test_text_is_split_as_by_the_library(splits: Patterns, pieces: list[str]) -> None:
    text = "".join(pieces)
    found = words(splits).encode(text)
    assert found is None or found == flat(split_by_library(splits, text))


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
def test_unsupported_text_is_left_to_the_library(text: str, form: Any, known: bool) -> None:
    assert (words((patterns.QWEN2,), form).encode(text) is not None) == known


def test_number_of_cached_words_is_limited() -> None:
    merged: list[str] = []

    def merge(word: str) -> list[int]:
        merged.append(word)
        return [0]

    encoder = WordEncoder((patterns.GPT2,), None, merge)
    for _ in range(2):
        assert encoder.encode("one two" + "!" * 100) == [0, 0, 0]
    assert merged == ["one", " two", "!" * 100, "!" * 100]
    many = " ".join(f"{chr(97 + n % 26)}{'x' * (n // 26 % 50)}{'y' * (n // 1300)}"
                    for n in range(70_000))  # fmt: skip
    assert encoder.encode(many) == encoder.encode(many)
    assert len(encoder._cache) <= 1 << 16


@pytest.mark.parametrize("name", HF)
def test_vocabularies_with_a_word_encoder(name: str) -> None:
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
def test_real_texts_encode_as_with_the_library(name: str) -> None:
    path = folder(name) / "tokenizer.json"
    bare = tokenizers.Tokenizer.from_file(str(path))
    tokenizer = HfTokenizer.from_file(path)
    for source in sorted(Path(json.__file__).parent.parent.glob("a*.py")):
        text = source.read_text(encoding="utf-8", errors="replace")
        numbered = "".join(f"{n:6}→{line}" for n, line in enumerate(text.splitlines(True)))
        for shown in (text, numbered):
            assert tokenizer.encode(shown) == bare.encode(shown, add_special_tokens=False).ids
