"""Incremental decoding equals decoding all ids together."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_tokenizers import available, brief, real

from dovetail_tokenizers import ByteTokenizer, Detokenizer, Piece, Tokenizer, TokenTextCache

TOKENIZER = ByteTokenizer(["<think>", "</think>"])
THINK, END = 256, 257


@dataclass(frozen=True)
class Case:
    """Feeds of ids and the pieces returned by each; the last pieces come from `finish`."""

    id: str
    feeds: list[list[int]]
    pieces: list[list[Piece]]


def plain(text: str) -> Piece:
    return Piece(text, False)


CASES = [
    Case("nothing", [[]], [[], []]),
    Case("plain_ids_are_one_piece", [[*b"abc"]], [[plain("abc")], []]),
    Case(
        "a_control_token_is_a_piece",
        [[*b"a", THINK, *b"b"]],
        [[plain("a"), Piece("<think>", True), plain("b")], []],
    ),
    Case("a_spelled_marker_is_plain", [[*b"<think>"]], [[plain("<think>")], []]),
    Case("a_split_character_waits", [[0xC3], [0xA9, 0x21]], [[], [plain("é!")], []]),
    Case("four_bytes", [[0xF0], [0x9F], [0xA6], [0x9C]], [[], [], [], [plain("🦜")], []]),
    Case("unfinished_at_the_end", [[0x61, 0xE2, 0x82]], [[plain("a")], [plain("�")]]),
    Case(
        "unfinished_before_a_control_token",
        [[0xE2, 0x82], [END, 0xAC]],
        [[], [plain("�"), Piece("</think>", True), plain("�")], []],
    ),
    Case("an_invalid_byte", [[0xFF, 0x61]], [[plain("�a")], []]),
    Case("an_id_outside_the_vocabulary_is_nothing", [[0x61, 999, -1]], [[plain("a")], []]),
]


@pytest.mark.parametrize("texts", [None, TokenTextCache(TOKENIZER)], ids=["alone", "shared"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_pieces(case: Case, texts: TokenTextCache | None) -> None:
    machine = Detokenizer(TOKENIZER, texts)
    assert [*map(machine.feed, case.feeds), machine.finish()] == case.pieces


def test_control_tokens_can_be_left_out() -> None:
    machine = Detokenizer(TOKENIZER, keep_controls=False)
    assert machine.feed([0x61, THINK, END, 0x62]) == [plain("a"), plain("b")]


def test_texts_of_plain_ids() -> None:
    texts = TokenTextCache(TOKENIZER, excluded={0x62})
    assert [texts[id] for id in (0x61, 0x62, 0xC3, THINK, 999, -1)] == ["a", *[None] * 5]
    assert 999 not in texts, "ids outside the vocabulary are not cached"


def streamed(tokenizer: Tokenizer, feeds: list[list[int]]) -> str:
    alone, shared = Detokenizer(tokenizer), Detokenizer(tokenizer, TokenTextCache(tokenizer))
    pieces = [piece for ids in feeds for piece in alone.feed(ids)] + alone.finish()
    assert pieces == [piece for ids in feeds for piece in shared.feed(ids)] + shared.finish()
    assert all(piece.text for piece in pieces)
    return "".join(piece.text for piece in pieces)


@given(feeds=st.lists(st.lists(st.integers(-1, 260))))
def test_any_chunking_of_any_bytes_decodes_to_the_same_text(feeds: list[list[int]]) -> None:
    assert streamed(TOKENIZER, feeds) == TOKENIZER.decode(id for ids in feeds for id in ids)


@pytest.mark.parametrize("name", brief(available() or ["qwen3"]))
@settings(max_examples=30)
@given(data=st.data(), text=st.text(max_size=20))
def test_real_tokenizers_decode_a_stream_as_one_text(
    name: str, data: st.DataObject, text: str
) -> None:
    tokenizer = real(name)
    ids = st.lists(st.integers(0, tokenizer.size - 1), max_size=4)
    feeds = data.draw(st.lists(ids, max_size=5))
    feeds.extend([id] for id in tokenizer.encode(text))
    assert streamed(tokenizer, feeds) == tokenizer.decode(id for part in feeds for id in part)


def test_leading_space_is_retained_because_ids_continue_a_prompt() -> None:
    """The library's decoder would strip it, as if the ids were a complete text."""
    tokenizer = real("gemma3")
    (id,) = tokenizer.encode(" world")
    assert tokenizer.bytes_of(id) == b" world"
    assert streamed(tokenizer, [[id]]) == tokenizer.decode([id]) == " world"
