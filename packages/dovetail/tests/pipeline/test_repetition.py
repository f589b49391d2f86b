"""Loops are found, and text that repeats itself on purpose is not."""

import re
import time
from array import array
from itertools import count

import pytest
from monotonous_texts import loops, purposeful_texts
from real_models import TOKENIZERS

from dovetail.ledger.entry import TOKEN_ID_TYPECODE
from dovetail.pipeline.recovery import DEFAULT_LOOP_TOKENS
from dovetail.pipeline.repetition import (
    CHECK_INTERVAL_TOKENS,
    MAX_PERIOD_TOKENS,
    MIN_PERIODS,
    RepetitionDetector,
)
from dovetail_tokenizers import load_tokenizer

PURPOSEFUL, LOOPS = dict(purposeful_texts()), dict(loops())
#: Splits text roughly like the vocabularies of current models.
_PIECES = re.compile(r" ?[^\W\d]{1,6}|\d| {1,16}|\n+|=+|-+|[^\w\s]{1,4}")
_REAL = [
    name
    for name in ("qwen3", "llama3", "gpt_oss", "glm4_5", "deepseek_v3", "mistral_tekken")
    if (TOKENIZERS / name).is_dir()
]


def _split(text: str) -> list[int]:
    numbers = count()
    known: dict[str, int] = {}
    return [known.setdefault(piece, next(numbers)) for piece in _PIECES.findall(text)]


def _find(ids: list[int], min_tokens: int = DEFAULT_LOOP_TOKENS) -> tuple[int, int] | None:
    """Return the period that is found and the number of tokens after which it is found."""
    generated = array(TOKEN_ID_TYPECODE)
    detector = RepetitionDetector(generated, min_tokens)
    for id in ids:
        generated.append(id)
        if len(generated) >= detector.next_check:
            period = detector.find_period()
            if period is not None:
                return period, len(generated)
    return None


@pytest.mark.parametrize("name", PURPOSEFUL)
def test_text_that_repeats_on_purpose_is_no_loop(name: str) -> None:
    assert _find(_split(PURPOSEFUL[name])) is None


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found(name: str) -> None:
    text = LOOPS[name]
    found = _find(_split(text))
    assert found is not None
    period, length = found
    start = len(_split(text[:500]))
    assert length <= start + max(DEFAULT_LOOP_TOKENS, (MIN_PERIODS + 2) * period) + 300


@pytest.mark.parametrize("folder", _REAL)
def test_real_vocabularies(folder: str) -> None:
    tokenizer = load_tokenizer(TOKENIZERS / folder)
    for name, text in PURPOSEFUL.items():
        assert _find(tokenizer.encode(text)) is None, name
    for name, text in LOOPS.items():
        assert _find(tokenizer.encode(text)) is not None, name


@pytest.mark.parametrize("period", [1, 2, 3, 16, 50, 61, 122, 400, 1000, MAX_PERIOD_TOKENS])
def test_every_period_is_found_soon(period: int) -> None:
    cycle = list(range(100, 100 + period))
    needed = max(300, MIN_PERIODS * period)
    found = _find(list(range(50)) + cycle * (needed // period + 70), min_tokens=300)
    assert found is not None
    assert found[0] == period
    assert found[1] <= 50 + needed + CHECK_INTERVAL_TOKENS + period


def test_a_period_longer_than_the_limit_is_not_found() -> None:
    assert _find(list(range(MAX_PERIOD_TOKENS + 1)) * 8, min_tokens=300) is None


def test_a_loop_that_varies_is_not_found() -> None:
    assert _find([id for n in range(3000) for id in (1, 2, 3, 10 + n)], min_tokens=300) is None


def test_a_repeated_part_that_ended_is_not_found() -> None:
    assert _find([7] * 280 + list(range(10, 5000)), min_tokens=300) is None


def test_a_factor_requires_a_longer_tail() -> None:
    generated = array(TOKEN_ID_TYPECODE, [7] * 500)
    detector = RepetitionDetector(generated, 300)
    assert detector.find_period(4) is None
    assert detector.find_period() == 1
    assert detector.next_check == 500 + CHECK_INTERVAL_TOKENS


def test_the_cost_of_a_token_does_not_grow_with_the_output() -> None:
    """Compare the cost of checks near the start and at 200,000 tokens, for a varied output."""
    generated = array(TOKEN_ID_TYPECODE, [(n * n) % 4099 for n in range(4000)])
    short = _measure(RepetitionDetector(generated, 300))
    generated.extend((n * n) % 4093 for n in range(200_000))
    assert _measure(RepetitionDetector(generated, 300)) < 5 * short


def _measure(detector: RepetitionDetector) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.thread_time()
        for _ in range(50):
            detector.find_period()
        best = min(best, time.thread_time() - started)
    return best
