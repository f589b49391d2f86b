"""The measured rate at which an engine prefills tokens."""

import pytest

from dovetail.routing.prefill_rate import PrefillRate


def prefill(rate: PrefillRate, tokens: int, start: float, end: float) -> None:
    rate.start(start)
    rate.finish(tokens, end)


def test_assumed_rate_counts_until_prefills_were_observed() -> None:
    assert PrefillRate(2_000.0).seconds(1_000) == pytest.approx(0.5)


def test_rate_is_learned() -> None:
    rate = PrefillRate(100.0)
    for at in range(200):
        prefill(rate, 10_000, at * 10.0, at * 10.0 + 2.0)
    assert rate.seconds(5_000) == pytest.approx(1.0, rel=0.01)


def test_short_prefills_do_not_hide_how_fast_long_ones_are() -> None:
    rate = PrefillRate(1_000.0)
    for at in range(200):
        prefill(rate, 20_000, at * 10.0, at * 10.0 + 2.0)
        for number in range(3, 8):
            prefill(rate, 100, at * 10.0 + number, at * 10.0 + number + 0.9)
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


def test_time_of_prompts_that_are_prefilled_together_counts_once() -> None:
    rate = PrefillRate(1_000.0)
    for at in range(200):
        for _ in range(4):
            rate.start(at * 10.0)
        for _ in range(4):
            rate.finish(5_000, at * 10.0 + 2.0)
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


def test_cancelled_prefills_are_ignored() -> None:
    rate = PrefillRate(1_000.0)
    prefill(rate, 0, 0.0, 100.0)
    assert rate.seconds(1_000) == 1.0
