"""Prompts as JSON: whatever was written before, the list is the prompt's own."""

import json
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engines import token_ids as spelling
from dovetail.engines.token_ids import PromptEncoder

PARTS = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(PARTS, st.sampled_from(["a", "b", None])), max_size=8)


@given(STEPS)
def test_every_prompt_is_spelled_as_it_is(steps: list[tuple[list[list[int]], str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelling, "MIN_CACHED_TOKENS", 1)
        patch.setattr(spelling, "MAX_CACHED_BYTES", 60)
        kept = PromptEncoder()
        for parts, session in steps:
            ids: list[int] = []
            for part in parts:  # grown part by part, and beginning anew with the next step
                ids += part
                assert json.loads(bytes(kept.encode(array("I", ids), session))) == ids
        assert kept._cached_bytes == sum(len(text) for _, text in kept._cache.values()) <= 60


def test_what_was_written_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def encode(ids: list[int]) -> bytes:
        written.append(len(ids))
        return msgspec.json.encode(ids)

    monkeypatch.setattr(spelling, "_encode", encode)
    kept, prompt = PromptEncoder(), array("I", range(50_000))
    for new in (0, 300, 300):
        prompt = prompt + array("I", [7]) * new
        kept.encode(prompt, "s")
    kept.encode(prompt, "another")
    assert written == [50_000, 300, 300, 50_600]


def test_sessions_are_forgotten() -> None:
    kept = PromptEncoder()
    for number in range(spelling.MAX_CACHED_SESSIONS + 5):
        kept.encode(array("I", [1]) * spelling.MIN_CACHED_TOKENS, str(number))
    assert list(kept._cache) == [str(n) for n in range(5, spelling.MAX_CACHED_SESSIONS + 5)]
