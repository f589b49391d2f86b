"""Recovery of omitted ids, for real vocabularies and any text: certain results are correct."""

import codecs
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_models import TOKENIZERS

from dovetail.engines.llamacpp.frames import TokenIdRecovery
from dovetail_tokenizers import ByteTokenizer, Tokenizer, load_tokenizer

NAMES = ("smollm2", "qwen3", "gemma3")


@cache
def recovery(name: str) -> tuple[Tokenizer, TokenIdRecovery]:
    path = TOKENIZERS / name
    if not path.exists():
        pytest.skip(f"no tokenizer {name}: tools/fetch_tokenizers.py fetches it")
    found = sorted(path.glob("*.gguf"))
    tokenizer = load_tokenizer(found[0] if found else path)
    return tokenizer, TokenIdRecovery(tokenizer)


@cache
def single_bytes(name: str) -> dict[bytes, int]:
    tokenizer, _ = recovery(name)
    spelled = ((tokenizer.bytes_of(id), id) for id in range(tokenizer.size))
    return {byte: id for byte, id in spelled if len(byte) == 1}


def as_streamed(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, list[int]]]:
    """Return the frames' texts with all their ids, of which llama.cpp sends only the last."""
    frames: list[tuple[str, list[int]]] = []
    held: list[int] = []
    decoder = codecs.getincrementaldecoder("utf-8")()
    text = ""
    for id in ids:
        held.append(id)
        text += decoder.decode(tokenizer.bytes_of(id))
        if not decoder.getstate()[0]:
            frames.append((text, held))
            text, held = "", []
    assert not held
    return frames


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40))
def test_certain_results_are_correct(name: str, text: str) -> None:
    tokenizer, lost = recovery(name)
    for spelled, ids in as_streamed(tokenizer, tokenizer.encode_plain(text)):
        found, certain = lost.recover(spelled, len(ids) - 1, ids[-1:])
        assert found == ids or not certain
        assert tokenizer.decode(found) == spelled


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(st.text(st.sampled_from("🦜é漢ab 😀ßж한글"), max_size=20))
def test_bytewise_encoding_is_recovered(name: str, text: str) -> None:
    """A grammar or a high temperature makes models encode characters in unusual ways."""
    tokenizer, lost = recovery(name)
    single = single_bytes(name)
    for spelled, ids in as_streamed(tokenizer, [single[bytes([b])] for b in text.encode()]):
        found, certain = lost.recover(spelled, len(ids) - 1, ids[-1:])
        assert found == ids
        assert certain


def test_ambiguity_is_reported_and_counted() -> None:
    tokenizer, _ = recovery("smollm2")
    lost = TokenIdRecovery(tokenizer)
    ids = tokenizer.encode_plain("🥰")
    found, certain = lost.recover("🥰", len(ids) - 1, ids[-1:])
    assert not certain
    assert tokenizer.decode(found) == "🥰"
    lost.recover("🦜", 2, tokenizer.encode_plain("🦜")[-1:])
    lost.record_unrecoverable()
    assert (lost.recovered, lost.ambiguous) == (2, 2)


@pytest.mark.parametrize(
    ("text", "lost", "given_ids"),
    [("é", 3, [0xA9]), ("é", 1, [0x41]), ("a�", 2, [0x42]), ("", 1, []), ("é", 1, [])],
)
def test_impossible_input(text: str, lost: int, given_ids: list[int]) -> None:
    found, certain = TokenIdRecovery(ByteTokenizer()).recover(text, lost, given_ids)
    assert not certain
    assert ByteTokenizer().decode(found) == text
