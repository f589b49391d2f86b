"""Prompts as JSON: the encoded list equals the prompt, no matter what is cached."""

import json
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines import token_ids
from dovetail.engines.token_ids import PromptEncoder

PARTS = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(PARTS, st.sampled_from(["a", "b", None])), max_size=8)


@given(STEPS)
def test_encoded_prompt_equals_the_prompt(steps: list[tuple[list[list[int]], str | None]]) -> None:
    encoder = PromptEncoder(min_tokens=1, max_bytes=60)
    for parts, session in steps:
        ids: list[int] = []
        for part in parts:  # extended part by part, and starting over with the next step
            ids += part
            assert json.loads(bytes(encoder.encode(array("I", ids), session))) == ids
    assert encoder._cache.total_size == sum(len(text) for _, text in encoder._cache.values()) <= 60


def test_cached_prefix_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(ids: list[int]) -> bytes:
        encoded.append(len(ids))
        return msgspec.json.encode(ids)

    monkeypatch.setattr(token_ids, "_encode", encode)
    encoder, prompt = PromptEncoder(), array("I", range(50_000))
    for new in (0, 300, 300):
        prompt = prompt + array("I", [7]) * new
        encoder.encode(prompt, "s")
    encoder.encode(prompt, "another")
    assert encoded == [50_000, 300, 300, 50_600]


def test_last_prompt_of_a_session_is_not_cached() -> None:
    encoder, prompt = PromptEncoder(min_tokens=1), array("I", [1, 2, 3])
    for session in ("a", "b"):
        encoder.encode(prompt, session)
    last = encoder.encode(array("I", [1, 2, 3, 4]), "a", ends_session=True)
    assert json.loads(bytes(last)) == [1, 2, 3, 4]
    assert list(encoder._cache) == ["b"]


def test_oldest_sessions_are_evicted() -> None:
    encoder = PromptEncoder()
    for number in range(token_ids.MAX_CACHED_SESSIONS + 5):
        encoder.encode(array("I", [1]) * token_ids.MIN_CACHED_TOKENS, str(number))
    assert list(encoder._cache) == [str(n) for n in range(5, token_ids.MAX_CACHED_SESSIONS + 5)]
