"""The measured time in which an engine prefills tokens."""

import pytest

from dovetail.routing.prefill_rate import PrefillRate


def test_assumed_rate_counts_until_prefills_were_observed() -> None:
    assert PrefillRate(2_000.0).seconds(1_000) == pytest.approx(0.5)


def test_rate_is_learned() -> None:
    rate = PrefillRate(100.0)
    for _ in range(200):
        rate.observe(10_000, 2.0)
    assert rate.seconds(5_000) == pytest.approx(1.0, rel=0.01)


def test_short_prefills_do_not_hide_how_fast_long_ones_are() -> None:
    rate = PrefillRate(1_000.0)
    for _ in range(20):
        rate.observe(20_000, 2.0)
        for _ in range(20):
            rate.observe(100, 0.1)  # mostly the time of the first output token
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0)])
def test_prefills_without_work_are_ignored(tokens: int, seconds: float) -> None:
    rate = PrefillRate(1_000.0)
    rate.observe(tokens, seconds)
    assert rate.seconds(1_000) == 1.0
