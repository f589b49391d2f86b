"""Encoding equals the original tokenizer's, and plain text yields no control token."""

import json
import random
import time
import unicodedata
from functools import cache
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from real_tokenizers import MARKERS, added_tokens, available, bare, folder, real
from synthetic_tokenizer import added_token, tokenizer_definition

from dovetail_tokenizers import (
    ByteTokenizer,
    EncodeError,
    HfTokenizer,
    TiktokenTokenizer,
    Tokenizer,
    encode_suffix,
)
from dovetail_tokenizers.encoding import MAX_LIBRARY_CHARS
from dovetail_tokenizers.normal_form import NormalForm, normalize

HF = [name for name in available() if (folder(name) / "tokenizer.json").exists()] or ["qwen3"]
ALL = available() or ["qwen3"]
WORDS = ["word", " the", "\n", "\n\n\n", "  ", "\t", "'s", "123", "<", "|", "<|im", "_end|>", "▁"]
WORDS += [
    "<table>",
    "é",
    "e\u0301",
    "漢字",
    "🦜",
    "\u0338",
    "x\u00a0",
    "</",
    "[/",
    "\r\n",
    "\u200d",
]


def soups(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    """Texts that mix control tokens, white space and arbitrary characters."""
    words = st.sampled_from(WORDS) | st.sampled_from(list(tokenizer.controls)) | st.text(max_size=5)
    return st.lists(words, max_size=10).map("".join)


@pytest.mark.parametrize("name", HF)
@settings(max_examples=120)
@given(data=st.data())
def test_encode_equals_the_library(name: str, data: st.DataObject) -> None:
    tokenizer = real(name)
    text = data.draw(soups(tokenizer))
    assert tokenizer.encode(text) == bare(name).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(data=st.data())
def test_plain_text_yields_no_control_token(name: str, data: st.DataObject) -> None:
    tokenizer = real(name)
    text = data.draw(soups(tokenizer))
    for first in (True, False):
        ids = tokenizer.encode_plain(text, first=first)
        assert not any(map(tokenizer.is_control, ids))
        assert all(0 <= id < tokenizer.size for id in ids)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60)
@given(data=st.data())
def test_suffix_is_encoded_as_within_the_full_text(name: str, data: st.DataObject) -> None:
    tokenizer = real(name)
    known, new = data.draw(soups(tokenizer)), data.draw(soups(tokenizer))
    ids = encode_suffix(tokenizer, tokenizer.encode(known), known, new)
    assert ids == tokenizer.encode(known + new)


OVERLAPPING = ByteTokenizer(["<a>", "<a>b>", "x<a>", ">", "<b", "b"])


@given(parts=st.tuples(st.text("<a>bx ", max_size=8), st.text("<a>bx ", max_size=8)))
def test_suffix_may_extend_the_last_control_token(parts: tuple[str, str]) -> None:
    known, new = parts
    ids = encode_suffix(OVERLAPPING, OVERLAPPING.encode(known), known, new)
    assert ids == OVERLAPPING.encode(known + new)


@given(text=st.text())
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer(["<think>"])
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_plain(text) == list(text.encode())


@pytest.mark.parametrize("name", ALL)
def test_lone_surrogate_becomes_a_replacement_character(name: str) -> None:
    tokenizer = real(name)
    assert tokenizer.decode(tokenizer.encode_plain("a\ud800b")) == "a�b"
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a�b"


@pytest.mark.parametrize("name", HF)
@settings(max_examples=60)
@given(data=st.data())
def test_decode_equals_the_library_with_control_tokens_spelled(
    name: str, data: st.DataObject
) -> None:
    tokenizer = real(name)
    # Runs of byte tokens that are invalid UTF-8 differ: the library replaces the whole run. Byte
    # tokens have small ids in every vocabulary.
    ids = data.draw(st.lists(st.integers(1000, tokenizer.size - 1), max_size=6))
    assert tokenizer.decode(ids) == bare(name).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", HF)
def test_every_character_of_the_first_plane_round_trips(name: str) -> None:
    tokenizer = real(name)
    text = "".join(chr(code) for code in range(1, 0xD800, 7))
    ids = tokenizer.encode_plain(text)
    assert tokenizer.decode(ids) == bare(name).decode(ids, skip_special_tokens=False)


def test_qwen_marks_are_control_tokens_only_when_named() -> None:
    assert "<think>" in real("qwen3").controls
    plain = real("qwen3", controls=())
    assert "<|im_end|>" in plain.controls
    assert "<think>" not in plain.controls
    assert plain.encode("<think>") == [151667], "still one token, as in the library"
    for tokenizer in (plain, real("qwen3")):
        assert 151667 not in tokenizer.encode_plain("<think>")


def test_gemma_tags_are_plain_tokens() -> None:
    gemma = real("gemma3")
    (table,) = gemma.encode("<table>")
    assert not gemma.is_control(table)
    assert gemma.bytes_of(table) == b"<table>"
    assert gemma.encode_plain("\n\n\n") == gemma.encode("\n\n\n"), "white space stays one token"
    assert gemma.bytes_of(gemma.encode("\x00")[0]) == b"\x00"


@pytest.mark.parametrize("name", ALL)
def test_plain_text_yields_no_added_token(name: str) -> None:
    """Neither those that are marked special nor others, such as those for filling in the middle."""
    tokenizer = real(name)
    tokens = {text: id for text, id in added_tokens(name).items() if text.strip(" \n\t▁")}
    ids = frozenset(tokens.values())
    assert tokens
    for text in (*tokens, "".join(tokens), "x ".join(tokens)):
        plain = tokenizer.encode_plain(f"a{text}b")
        assert ids.isdisjoint(plain), text[:100]
        assert tokenizer.decode(plain) == f"a{text}b"
    for text, id in tokens.items():
        assert tokenizer.encode(text) == [id], "raw text may spell them"


def test_fill_in_the_middle_tokens_are_text_unless_the_text_is_raw() -> None:
    qwen = real("qwen3")
    raw = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert [id for id in qwen.encode(raw) if id >= 151643] == [151659, 151661, 151660]
    assert max(qwen.encode_plain(raw)) < 151643


def library(definition: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def test_control_token_spelled_by_the_vocabulary_is_split() -> None:
    tokenizer = HfTokenizer(tokenizer_definition())
    assert tokenizer.encode("<s>") == [1]
    assert tokenizer.encode_plain("<s>") == [2, 8]
    assert tokenizer.decode([2, 8]) == "<s>"


def test_only_the_first_text_gets_a_leading_space() -> None:
    tokenizer = HfTokenizer(tokenizer_definition())
    assert tokenizer.encode_plain("a", first=True) == [7]
    assert tokenizer.encode_plain("a") == [6]
    assert tokenizer.encode("a<s>a") == [7, 1, 6]
    assert tokenizer.decode([7, 1, 7]) == " a<s> a"


SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
UNIGRAM = [["<unk>", 0.0], ["<s>", -1.0], ["<", -5.0], ["s>", -5.0], ["▁", -4.0], ["▁a", -3.0]]
UNIGRAM += [["a", -6.0], ["s", -6.0], [">", -6.0], ["|", -6.0], ["b", -6.0]]
VARIANTS = {
    "first": tokenizer_definition(),
    "legacy_space_after_every_token": tokenizer_definition(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE],
        },
        pre_tokenizer=None,
    ),
    "unigram": tokenizer_definition(model={"type": "Unigram", "unk_id": 0, "vocab": UNIGRAM}),
    "marks_matched_after_normalizing": tokenizer_definition(
        added_tokens=[added_token(1, "<s>", normalized=True), added_token(11, "<|end|>")],
        normalizer={"type": "NFC"},
    ),
    "plain_added_tokens": tokenizer_definition(
        added_tokens=[
            added_token(1, "<s>"),
            added_token(11, "<|end|>"),
            added_token(12, "ab", special=False),
        ]
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
@given(words=st.lists(st.sampled_from(["<s>", "<|end|>", "<|", "a", " ", "b", "ab", "s>", "é"])))
def test_every_model_type_encodes_as_the_library(variant: str, words: list[str]) -> None:
    text = "".join(words)
    tokenizer = prepared(variant)
    assert tokenizer.encode(text) == original(variant).encode(text, add_special_tokens=False).ids
    plain = set(tokenizer.encode_plain(text)) | set(tokenizer.encode_plain(text, first=True))
    assert plain.isdisjoint(tokenizer.controls.values())


@cache
def prepared(variant: str) -> HfTokenizer:
    return HfTokenizer(VARIANTS[variant])


@cache
def original(variant: str) -> tokenizers.Tokenizer:
    return library(VARIANTS[variant])


FLAGS = st.fixed_dictionaries({name: st.booleans() for name in ("lstrip", "rstrip", "single_word")})


@settings(max_examples=200)
@given(
    flags=st.tuples(FLAGS, FLAGS),
    text=st.lists(st.sampled_from(["<s>", "<|end|>", "<|", "a", " ", "\n", "b<", "_", "s"])),
    scheme=st.sampled_from(["first", "always", "never"]),
)
def test_tokens_that_strip_white_space(
    flags: tuple[dict[str, bool], dict[str, bool]], text: list[str], scheme: str
) -> None:
    definition = tokenizer_definition(
        added_tokens=[added_token(1, "<s>", **flags[0]), added_token(11, "<|end|>", **flags[1])]
    )
    definition["pre_tokenizer"] = {**definition["pre_tokenizer"], "prepend_scheme": scheme}
    # Where the token must not match, the library would let the vocabulary spell it. Not so here.
    definition["model"] = {**definition["model"], "merges": [["▁", "a"]]}
    whole = "".join(text)
    expected = library(definition).encode(whole, add_special_tokens=False).ids
    assert HfTokenizer(definition).encode(whole) == expected


def test_plain_added_token_that_covers_a_control_token_wins() -> None:
    tokens = [
        added_token(1, "<s>"),
        added_token(11, "b<s", special=False),
        added_token(12, "a<s>b", special=False),
    ]
    definition = tokenizer_definition(added_tokens=tokens)
    for text in ("a<s>b", "b<s>", "a<s>a", "bb<s>"):
        expected = library(definition).encode(text, add_special_tokens=False).ids
        assert HfTokenizer(definition).encode(text) == expected


def test_ids_of_the_definition_are_used_even_with_gaps() -> None:
    tokens = [
        added_token(1, "<s>"),
        added_token(20, "<|end|>"),
        added_token(30, "ab", special=False),
    ]
    tokenizer = HfTokenizer(tokenizer_definition(added_tokens=tokens))
    assert tokenizer.encode("ab<|end|>b") == [30, 20, 10]
    assert tokenizer.size == 31
    assert tokenizer.decode([30, 25, 20]) == "ab<|end|>"


def test_only_added_tokens_can_be_named_as_control_tokens() -> None:
    assert set(HfTokenizer(tokenizer_definition(), controls=["<think>", "ab"]).controls) == {
        "<s>",
        "<|end|>",
    }
    assert set(MARKERS).isdisjoint(HfTokenizer(tokenizer_definition(), controls=MARKERS).controls)


@pytest.mark.parametrize("form", get_args(NormalForm))
def test_marks_are_normalized_as_by_the_standard_library(form: NormalForm) -> None:
    marks = [chr(code) for code in range(0x300, 0x370)] + ["\u0591", "\u3099", "\U0001d165"]
    chance = random.Random(1)
    for count in (1, 20, 31, 32, 33, 200):
        for start in ("", "a", "α", "가", "\u0344"):
            text = f"{start}{''.join(chance.choices(marks, k=count))}b"
            assert normalize(form, text) == unicodedata.normalize(form, text)


def test_a_long_run_of_marks_takes_linear_time() -> None:
    """The standard library takes about a minute for this text, and holds the GIL."""
    text = "\u0315" * 50_000 + "\u0301" * 50_000
    started = time.thread_time()
    assert normalize("NFC", text) == "\u0301" * 50_000 + "\u0315" * 50_000
    assert time.thread_time() - started < 5


def test_text_that_is_too_long_for_one_call_is_an_error() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    for tokenizer in (
        TiktokenTokenizer(ranks, r"\S+|\s+", {}),
        HfTokenizer(tokenizer_definition()),
    ):
        with pytest.raises(EncodeError, match="the maximum is 4194304"):
            tokenizer.encode_plain("\u0301" * (MAX_LIBRARY_CHARS + 1))


def test_panic_of_the_library_is_an_error() -> None:
    """The library's regular expressions panic on long runs of white space."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    tokenizer = TiktokenTokenizer(ranks, r"\s+(?!\S)|\s+|\S+", {})
    with pytest.raises(EncodeError, match="cannot encode a text of 4000000 characters"):
        tokenizer.encode_plain(" " * 4_000_000)
    assert tokenizer.encode_plain("a b") == list(b"a b")
