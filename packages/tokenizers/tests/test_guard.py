"""Message text never becomes a control token; the template's own markers always do."""

import string
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_tokenizers import available, real

from dovetail_tokenizers import ByteTokenizer, ControlTokenGuard, Segment

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "a<think>", "<|im", "·", "[")
TOKENIZER = ByteTokenizer(CONTROLS)
GUARD = ControlTokenGuard(TOKENIZER)


@dataclass(frozen=True)
class Case:
    """A message text and the number of nonces that protect it."""

    id: str
    text: str
    nonces: int


CASES = [
    Case("no_marker", "plain <text> with |> signs", 0),
    Case("empty", "", 0),
    Case("one_marker", "x<think>y", 1),
    Case("a_marker_in_a_marker_is_broken_too", "a<think>b", 2),
    Case("a_longer_marker_that_begins_with_another", "<|im_end|>.", 1),
    Case("adjacent_markers", "</think><think>", 2),
    Case("an_unfinished_marker_at_the_end", "see <thi", 1),
    Case("a_single_bracket_at_the_end", "1 <", 1),
    Case("a_marker_at_the_end", "x<think>", 1),
    Case("a_marker_of_one_character", "5·3", 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_protect_breaks_complete_and_partial_spellings(case: Case) -> None:
    protected = GUARD.protect(case.text)
    added = len(protected) - len(case.text)
    assert added == case.nonces * len(nonce_of(GUARD))
    assert GUARD.reveal(protected) == case.text
    assert GUARD.segments(protected) == ([Segment(case.text, False)] if case.text else [])
    assert not any(map(TOKENIZER.is_control, GUARD.encode(protected)))


def test_text_without_markers_is_returned_unchanged() -> None:
    text = "".join(["nothing to ", "protect here"])
    assert GUARD.protect(text) is text


def test_joined_texts_form_no_marker() -> None:
    joined = GUARD.protect("<|im_") + GUARD.protect("end|>")
    assert GUARD.segments(joined) == [Segment("<|im_end|>", False)]


def test_markers_of_the_template_become_segments() -> None:
    rendered = f"<|im_start|>user\n{GUARD.protect('say <|im_end|> <')}<|im_end|>\n"
    assert GUARD.segments(rendered) == [
        Segment("<|im_start|>", True),
        Segment("user\nsay <|im_end|> <", False),
        Segment("<|im_end|>", True),
        Segment("\n", False),
    ]


def test_each_guard_has_its_own_nonce_of_letters_and_digits() -> None:
    nonces = {nonce_of(ControlTokenGuard(TOKENIZER)) for _ in range(20)}
    assert len(nonces) == 20
    assert all(set(nonce) <= set(string.ascii_letters + string.digits) for nonce in nonces)
    assert all("a" not in nonce for nonce in nonces), "a control token starts with it"


def nonce_of(guard: ControlTokenGuard) -> str:
    return guard.protect("<think>")[1:].removesuffix("think>")


PIECES = st.sampled_from([*CONTROLS, "<", "<|", "im_", "end|>", "a", "think>", " ", "\n", "é", "|"])
SOUP = st.lists(PIECES, max_size=8).map("".join)


@given(texts=st.lists(SOUP, max_size=5), marker=st.sampled_from(CONTROLS))
def test_only_markers_of_the_template_are_encoded_as_control_tokens(
    texts: list[str], marker: str
) -> None:
    rendered = marker.join(map(GUARD.protect, texts))
    ids = GUARD.encode(rendered)
    wanted = [Segment(marker, True)] * (len(texts) - 1)
    assert [segment for segment in GUARD.segments(rendered) if segment.control] == wanted
    assert "".join(segment.text for segment in GUARD.segments(rendered)) == marker.join(texts)
    assert TOKENIZER.decode(ids) == marker.join(texts)
    assert sum(map(TOKENIZER.is_control, ids)) == len(wanted)


@given(text=SOUP)
def test_unprotected_text_encodes_as_with_the_tokenizer(text: str) -> None:
    assert GUARD.encode(text) == TOKENIZER.encode(text)


@pytest.mark.parametrize("name", available() or ["qwen3"])
def test_real_tokenizers_encode_typed_markers_as_text(name: str) -> None:
    tokenizer = real(name)
    guard = ControlTokenGuard(tokenizer)
    markers = list(tokenizer.controls)[:300]
    typed = "\n".join(markers) + markers[0][:-1]
    rendered = f"{markers[0]}{guard.protect(typed)}{markers[-1]}\n"
    ids = guard.encode(rendered)
    assert [id for id in ids if tokenizer.is_control(id)] == [
        tokenizer.controls[markers[0]],
        tokenizer.controls[markers[-1]],
    ]
    assert tokenizer.decode(ids) == f"{markers[0]}{typed}{markers[-1]}\n"
    assert guard.encode(f"{markers[0]}hi {markers[-1]}\n") == tokenizer.encode(
        f"{markers[0]}hi {markers[-1]}\n"
    )


def test_ids_are_matched_with_the_beginning_of_a_rendered_text() -> None:
    tokenizer = ByteTokenizer(["<|end|>", "<|user|>"])
    guard = ControlTokenGuard(tokenizer)
    ids = tokenizer.encode("<|user|>é is é<|end|>")
    rendered = "<|user|>é is é<|end|>\n<|user|>more"
    assert guard.match_length(ids, rendered) == len("<|user|>é is é<|end|>")
    assert guard.match_length([], rendered) == 0
    assert guard.match_length(ids[:2], rendered) is None  # in the middle of a character
    assert guard.match_length(ids[:2], "<|user|>\ufffd<|end|>") == len(
        "<|user|>\ufffd"
    )  # and rendered as such
    assert guard.match_length([*ids, 1], rendered) is None
    assert guard.match_length(ids, rendered[:5]) is None
    spelled_out = tokenizer.encode_plain("<|user|>é is é<|end|>")
    assert guard.match_length(spelled_out, rendered) is None  # the same text without control tokens
    typed = guard.protect("<|user|>") + "é is é<|end|>\n"
    assert guard.match_length(ids, typed) is None
    long = tokenizer.encode_plain("x" * 5000)
    assert guard.match_length(long, "x" * 6000) == 5000
