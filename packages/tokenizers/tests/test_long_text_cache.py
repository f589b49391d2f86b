"""Long texts are encoded once, and cached by their position in a prompt."""

import json
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library_words import PATTERN_PARAMS, TEXT_PIECES, split_by_library
from real_tokenizers import available, bare, brief, folder, real
from synthetic_tokenizer import tokenizer_definition

from dovetail_tokenizers import ControlTokenGuard, HfTokenizer, patterns
from dovetail_tokenizers.long_text_cache import (
    MIN_LONG_CHARS,
    MIN_PIECE_CHARS,
    SOFT_MAX_PIECE_CHARS,
    LongTextCache,
    split_text,
)
from dovetail_tokenizers.words import Patterns, WordEncoder

ASCII = [chr(code) for code in range(0x20, 0x7F)]
LINES = "".join(f"Line {n} of a long text:\tit's {n * n}.\n" for n in range(2000))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the texts that are split into words from now on."""
    seen: list[str] = []
    plain = WordEncoder.encode

    def encode(self: WordEncoder, text: str) -> list[int] | None:
        seen.append(text)
        return plain(self, text)

    monkeypatch.setattr(WordEncoder, "encode", encode)
    return seen


def characters(texts: list[str]) -> int:
    return sum(map(len, texts))


def in_pieces(splits: Patterns, text: str) -> list[str]:
    return [word for piece in split_text(text, 1, 1, 1) for word in split_by_library(splits, piece)]


@pytest.mark.parametrize("splits", PATTERN_PARAMS)
def test_characters_around_a_line_break_are_split_as_in_the_full_text(
    splits: Patterns,
) -> None:
    for behind in ASCII:
        text = "".join(f"a {before}\n{behind}{behind}b {before}\n\n" for before in ASCII)
        assert len(list(split_text(text, 1, 1))) > len(ASCII) // 2 or behind in " /"
        assert in_pieces(splits, text) == split_by_library(splits, text), behind


@pytest.mark.parametrize("splits", PATTERN_PARAMS)
def test_characters_around_a_space_are_split_as_in_the_full_text(splits: Patterns) -> None:
    around = [*ASCII, "é", "я", "漢", "ʼ", "\u0301", "\u00a0"]
    for behind in around:
        text = "".join(f"1{before} {behind}s{before}" for before in around)
        assert len(list(split_text(text, 1, 1, 1))) > len(ASCII) // 4 or not behind.isalpha()
        assert in_pieces(splits, text) == split_by_library(splits, text), behind


@pytest.mark.parametrize("splits", PATTERN_PARAMS)
@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from([*TEXT_PIECES, "x\n", ".\n", "\n{"]) | st.text(max_size=4)))
def test_pieces_are_split_as_in_the_full_text(splits: Patterns, parts: list[str]) -> None:
    text = "".join(parts)
    assert "".join(split_text(text, 1, 1, 1)) == text
    assert in_pieces(splits, text) == split_by_library(splits, text)


def sources() -> Iterator[str]:
    for path in sorted(Path(json.__file__).parent.parent.glob("c[o-z]*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        # Gemma has a token <body>, which plain text never becomes.
        if len(text) > 4 * MIN_PIECE_CHARS and "<body>" not in text:
            yield text


@pytest.mark.parametrize(
    "name", brief(n for n in available() if (folder(n) / "tokenizer.json").exists())
)
def test_partly_cached_text_encodes_as_with_the_library(name: str) -> None:
    tokenizer = HfTokenizer.from_file(folder(name) / "tokenizer.json")
    for text in sources():
        middle = len(text) // 2
        for shown in (
            text,
            text,
            "An own line.\n" + text,
            text[:middle] + "e\u0301🦜" + text[middle:],
        ):
            assert tokenizer.encode(shown) == bare(name).encode(shown, add_special_tokens=False).ids
            assert ControlTokenGuard(tokenizer).pack(shown).tolist() == tokenizer.encode(shown)


def test_only_new_text_is_split_into_words(encoded: list[str]) -> None:
    tokenizer = HfTokenizer.from_file(folder("qwen3") / "tokenizer.json")
    guard = ControlTokenGuard(tokenizer)
    first = guard.pack(f"<|im_start|>{LINES}<|im_end|>One.")
    assert characters(encoded) == len(LINES) + len("One.")
    encoded.clear()
    assert guard.pack(f"<|im_start|>{LINES}<|im_end|>Two.")[:-2] == first[:-2]
    assert encoded == ["Two."]
    encoded.clear()
    guard.pack(f"<|im_start|>Another line, of another length.\n{LINES}<|im_end|>")
    assert characters(encoded) < 6 * MIN_PIECE_CHARS


def test_very_long_lines_and_words_do_not_block_other_threads(encoded: list[str]) -> None:
    """Texts that cannot be split into small pieces go to the library, which releases the GIL."""
    tokenizer = real("qwen3")
    line, solid = LINES.replace("\n", " "), "word" * SOFT_MAX_PIECE_CHARS
    for text in (
        line,
        "漢字" * SOFT_MAX_PIECE_CHARS,
        solid + LINES,
        LINES + solid,
        "1 2 " * SOFT_MAX_PIECE_CHARS,
    ):
        made = tokenizer.pack_plain(text, first=True).tolist()
        assert max(map(len, encoded), default=0) <= 2 * SOFT_MAX_PIECE_CHARS
        assert made == bare("qwen3").encode(text, add_special_tokens=False).ids
    assert characters(encoded) > len(line) // 2


def test_short_texts_are_not_cached() -> None:
    texts = LongTextCache()
    assert texts.put("later", "x" * (MIN_LONG_CHARS - 1), [1]) == array("I", [1])
    assert texts.get("later", "x" * (MIN_LONG_CHARS - 1)) is None
    assert texts.size == 0


def test_size_is_limited_and_the_oldest_entry_is_evicted_first() -> None:
    texts = LongTextCache(max_bytes=100 * MIN_LONG_CHARS)
    used = "u" * MIN_LONG_CHARS
    texts.put("later", used, range(MIN_LONG_CHARS))
    for n in range(100):
        texts.put("later", f"{n:{MIN_LONG_CHARS}}", range(MIN_LONG_CHARS))
        assert 0 < texts.size <= 100 * MIN_LONG_CHARS
        assert texts.get("later", used) == array("I", range(MIN_LONG_CHARS))
    assert texts.get("later", f"{0:{MIN_LONG_CHARS}}") is None
    assert texts.get("later", f"{99:{MIN_LONG_CHARS}}") is not None


def test_one_large_text_does_not_evict_all_others() -> None:
    texts = LongTextCache(max_bytes=100 * MIN_LONG_CHARS)
    texts.put("later", "x" * MIN_LONG_CHARS, [1])
    texts.put("later", "y" * 90 * MIN_LONG_CHARS, [2])
    assert texts.get("later", "x" * MIN_LONG_CHARS) == array("I", [1])
    assert texts.get("later", "y" * 90 * MIN_LONG_CHARS) is None


def test_text_stored_twice_is_counted_once() -> None:
    texts = LongTextCache()
    texts.put("later", "x" * MIN_LONG_CHARS, [1])
    size = texts.size
    texts.put("later", "x" * MIN_LONG_CHARS, [1])
    assert texts.size == size


def test_first_text_is_cached_separately_from_later_ones() -> None:
    tokenizer = HfTokenizer(tokenizer_definition())
    text = "a" * MIN_LONG_CHARS
    for _ in range(2):
        assert tokenizer.encode_plain(text, first=True) == [7] + [6] * (MIN_LONG_CHARS - 1)
        assert tokenizer.encode_plain(text) == [6] * MIN_LONG_CHARS


def test_text_is_not_split_where_an_added_token_could_span_the_split() -> None:
    text = LINES + "x\ny" + LINES
    words = WordEncoder((patterns.QWEN2,), None, lambda word: [len(word)], added=["x\ny"])
    assert words.encode_long(text, LongTextCache()) is None
    lines = LINES[:SOFT_MAX_PIECE_CHARS]
    assert words.encode_long(lines, LongTextCache()) == words.encode(lines)


def test_threads_may_share_a_tokenizer() -> None:
    tokenizer = real("qwen3")
    texts = [f"{n}\n{LINES[n:]}" for n in range(8)]
    expected = [bare("qwen3").encode(text, add_special_tokens=False).ids for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tokenizer.encode_plain, texts * 3))
    assert found == expected * 3


def test_ids_after_a_long_opening_are_matched_without_decoding_it() -> None:
    tokenizer = real("qwen3")
    guard = ControlTokenGuard(tokenizer)
    head = f"<|im_start|>system\n{LINES}<|im_end|>\n<|im_start|>user\n"
    ids = tokenizer.encode(head + "Hi<|im_end|>")
    assert guard.match_length(ids, head + "Hi<|im_end|>\nmore") == len(head + "Hi<|im_end|>")
    assert guard.match_length(ids, head + "Ho<|im_end|>\nmore") is None
    assert guard.match_length(ids, head + guard.protect("Hi<|im_end|>") + "\nmore") is None
    assert guard.match_length(ids, head.replace("Line 1999", "Line 1998") + "Hi<|im_end|>") is None
    other = [*ids[:5], *tokenizer.encode(tokenizer.decode(ids[5:6])), *ids[6:]]
    assert guard.match_length(other, head + "Hi<|im_end|>") == len(head + "Hi<|im_end|>")
    typed = guard.protect("<|im_end|>") + LINES
    head = f"<|im_start|>system\n{typed}<|im_end|>"
    assert guard.match_length(guard.pack(head), head) is None
