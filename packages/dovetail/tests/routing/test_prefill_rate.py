"""The measured rate at which an engine prefills tokens."""

import asyncio

import pytest
from fake_clock_loop import run_jumping
from hypothesis import given
from hypothesis import strategies as st
from timed_sessions import Sink

from dovetail.engines.engine import TokenDelta
from dovetail.routing.prefill_rate import MAX_INTERVALS, CountedTimes, PrefillMeter, PrefillRate


def prefill(rate: PrefillRate, tokens: int, start: float, end: float) -> None:
    rate.start(start)
    rate.observe(rate.end(start, end), tokens)


def test_assumed_rate_counts_until_prefills_were_observed() -> None:
    assert PrefillRate(2_000.0).seconds(1_000) == pytest.approx(0.5)


def test_rate_is_learned() -> None:
    rate = PrefillRate(100.0)
    for at in range(200):
        prefill(rate, 10_000, at * 10.0, at * 10.0 + 2.0)
    assert rate.seconds(5_000) == pytest.approx(1.0, rel=0.01)
    assert rate.tokens_per_second == pytest.approx(5_000, rel=0.01)


def test_prefill_without_time_has_a_finite_rate() -> None:
    rate = PrefillRate(100.0)
    for at in range(20_000):
        prefill(rate, 10_000, float(at), float(at))
    assert rate.tokens_per_second < 1e15


def test_short_prefills_do_not_hide_how_fast_long_ones_are() -> None:
    rate = PrefillRate(1_000.0)
    for at in range(200):
        prefill(rate, 20_000, at * 10.0, at * 10.0 + 2.0)
        for number in range(3, 8):
            prefill(rate, 100, at * 10.0 + number, at * 10.0 + number + 0.9)
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("tokens", [0, 255])
def test_overlapping_short_prefills_do_not_count(tokens: int) -> None:
    """A busy server always prefills something short: or prompts are cancelled."""
    rate = PrefillRate(1_000.0)
    rate.start(0.0)
    for at in range(1, 3_000):
        rate.start(float(at))
        rate.observe(rate.end(at - 1.0, at + 0.1), tokens)
        if at % 100 == 0:
            rate.observe(rate.end(rate.start(float(at)), at + 2.0), 20_000)
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


def test_times_are_counted_in_any_order() -> None:
    counted = CountedTimes()
    assert counted.add(1.0, 3.0) == 2.0
    assert counted.add(0.0, 2.0) == 1.0
    assert counted.add(5.0, 6.0) == 1.0
    assert counted.add(3.0, 5.0) == 2.0
    assert counted.add(0.0, 7.0) == 1.0
    assert counted.add(2.0, 2.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_counted_times_are_those_of_the_union(intervals: list[tuple[int, int]]) -> None:
    counted, seconds = CountedTimes(), set[int]()
    for begin, length in intervals:
        added = set(range(begin, begin + length)) - seconds
        assert counted.add(float(begin), float(begin + length)) == len(added)
        seconds |= added


def test_prefills_that_began_too_long_ago_are_ignored() -> None:
    rate = PrefillRate(1_000.0)
    for at in range(1, 3 * MAX_INTERVALS):
        prefill(rate, 10_000, at * 10.0, at * 10.0 + 1.0)
    prefill(rate, 1_000_000, 0.0, 5.0)
    assert rate.seconds(10_000) == pytest.approx(1.0, rel=0.01)


def test_time_of_prompts_that_are_prefilled_together_counts_once() -> None:
    rate = PrefillRate(1_000.0)
    for at in range(200):
        for _ in range(4):
            rate.start(at * 10.0)
        for _ in range(4):
            rate.observe(rate.end(at * 10.0, at * 10.0 + 2.0), 5_000)
    assert rate.seconds(20_000) == pytest.approx(2.0, rel=0.1)


def test_cancelled_prefills_are_ignored() -> None:
    rate = PrefillRate(1_000.0)
    prefill(rate, 0, 0.0, 100.0)
    assert rate.seconds(1_000) == 1.0


def test_tokens_may_be_known_only_after_the_output() -> None:
    """Prompts that are prefilled one after the other, with times without prefill in between."""
    rate = PrefillRate(1_000.0)
    for at in range(0, 20_000, 100):
        ended = []
        for start in (at, at + 20):
            rate.start(start)
            rate.start(start)
            ended += [rate.end(start, start + 1.0), rate.end(start, start + 2.0)]
        for prefill_end in reversed(ended):
            rate.observe(prefill_end, 5_000)
    assert rate.seconds(5_000) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("reported_at", [0, 1, 3])
def test_engines_report_cached_tokens_with_any_delta(reported_at: int) -> None:
    async def scene() -> float:
        rate = PrefillRate(1_000.0)
        for _ in range(100):
            meter = PrefillMeter(rate, 6_000, Sink())
            await asyncio.sleep(2.0)  # the prefill
            for at in range(4):
                meter.push(TokenDelta([1], cached=2_000 if at == reported_at else None))
                await asyncio.sleep(1.0)
            meter.stop()
        return rate.seconds(2_000)

    assert run_jumping(scene()) == pytest.approx(1.0, rel=0.05)


def test_prompt_counts_once_if_several_deltas_report_its_cached_tokens() -> None:
    async def scene() -> float:
        rate = PrefillRate(1_000.0)
        for _ in range(100):
            meter = PrefillMeter(rate, 6_000, Sink())
            await asyncio.sleep(2.0)
            for _ in range(4):
                meter.push(TokenDelta([1], cached=2_000))
        return rate.seconds(2_000)

    assert run_jumping(scene()) == pytest.approx(1.0, rel=0.05)


def test_prompts_that_wait_in_the_engine_count_only_while_it_prefills_others() -> None:
    rate = PrefillRate(1_000.0)
    rate.observe(rate.end_queued(50.0, 100.0), 50_000)
    assert rate.tokens_per_second == pytest.approx(1_000)
    for at in range(0, 4_000, 20):
        rate.start(at)
        queued = rate.end_queued(at, at + 1.0)  # it was prefilled before the other one
        rate.observe(queued, 5_000)
        rate.observe(rate.end(at, at + 2.0), 5_000)
    assert rate.is_measured
    assert rate.tokens_per_second == pytest.approx(5_000, rel=0.05)


def test_prompts_that_were_sent_before_the_engine_prefilled_others_do_not_count() -> None:
    """Else a long prompt would seem to be prefilled in the short time that the other one took."""
    rate = PrefillRate(1_000.0)
    for at in range(0, 4_000, 20):
        rate.start(at + 9.0)
        rate.observe(rate.end_queued(at, at + 10.0), 10_000)
        rate.observe(rate.end(at + 9.0, at + 10.0), 1_000)
    assert rate.tokens_per_second == pytest.approx(1_000, rel=0.05)


def test_output_of_a_queued_prompt_is_measured_from_its_first_token() -> None:
    async def scene() -> tuple[list[float], PrefillRate]:
        rate, times = PrefillRate(1_000.0), list[float]()
        meter = PrefillMeter(rate, 6_000, Sink(), times.append, is_queued=True)
        await asyncio.sleep(3.0)
        for _ in range(3):
            meter.push(TokenDelta([1], cached=0))
            await asyncio.sleep(1.0)
        meter.stop()
        return times, rate

    times, rate = run_jumping(scene())
    assert times == pytest.approx([3.0])
    assert not rate.is_measured


def test_request_that_ends_without_output_is_not_measured() -> None:
    async def scene() -> float:
        rate = PrefillRate(100_000.0)
        PrefillMeter(rate, 6_000, Sink()).stop()
        prefill(rate, 100_000, 100.0, 101.0)  # nothing else is running
        return rate.seconds(100_000)

    assert run_jumping(scene()) == pytest.approx(1.0, rel=0.1)
