"""Statistics of `dovetail compare` on small samples, with values that are known or enumerated."""

import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.compare.statistics import (
    MAX_EXACT_DIFFERENCES,
    PairedSample,
    average_by_task,
    bootstrap_interval,
    correct_p_values,
    measure_effect,
    permutation_test,
    sign_test,
)

COUNTS = st.integers(0, 40).map(float)
PAIRS = st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=12)


def test_the_unit_is_the_task() -> None:
    pairs = [("x", 1.0, 2.0), ("x", 3.0, 8.0), ("y", 5.0, 4.0), ("y", None, 1.0), ("z", 1.0, None)]
    sample = average_by_task(pairs)
    assert sample == PairedSample(("x", "y"), (2.0, 5.0), (5.0, 4.0), (3.0, -1.0), 3, 2)


def test_effects_of_a_sample() -> None:
    effect = measure_effect(_sample([10, 20, 30, 40], [12, 24, 30, 46]), Random(1))
    assert (effect.mean_a, effect.mean_b, effect.difference) == (25, 28, 3)
    assert effect.relative == pytest.approx(0.12)
    assert effect.deviation == pytest.approx(math.sqrt(20 / 3))
    assert effect.standardized == pytest.approx(3 / math.sqrt(20 / 3))
    assert (effect.higher, effect.lower) == (3, 0)
    assert effect.sign_p == effect.permutation_p == 0.25
    assert effect.interval is not None
    assert effect.interval[0] <= 3 <= effect.interval[1]


def test_no_pair_has_no_effect() -> None:
    effect = measure_effect(average_by_task([("x", None, 1.0)]), Random(1))
    assert effect.difference is effect.mean_a is effect.mean_b is None
    assert effect.interval is None
    assert (effect.sign_p, effect.permutation_p) == (1, 1)


def test_one_task_has_an_effect_but_no_interval() -> None:
    effect = measure_effect(_sample([2], [5]), Random(1))
    assert (effect.difference, effect.relative) == (3, 1.5)
    assert effect.standardized is effect.deviation is None
    assert effect.interval is None
    assert (effect.sign_p, effect.permutation_p) == (1, 1)


def test_equal_values_show_nothing() -> None:
    effect = measure_effect(_sample([4] * 30, [4] * 30), Random(1))
    assert (effect.difference, effect.relative, effect.deviation) == (0, 0, 0)
    assert effect.standardized is None
    assert effect.interval is None
    assert (effect.sign_p, effect.permutation_p) == (1, 1)


def test_a_constant_difference_is_shown_without_an_interval() -> None:
    effect = measure_effect(_sample([0] * 10, [1] * 10), Random(1))
    assert effect.relative is effect.standardized is None
    assert effect.interval is None
    assert effect.sign_p == effect.permutation_p == 2 / 2**10


#: Two-sided p-values of the sign test: the table of the binomial distribution with p = 1/2.
SIGN_TABLE = [
    (5, 0, 0.0625),
    (6, 0, 0.03125),
    (7, 1, 0.0703125),
    (8, 0, 0.0078125),
    (9, 1, 0.021484375),
    (10, 2, 0.03857421875),
    (5, 5, 1.0),
    (15, 5, 0.04138946533203125),
    (0, 0, 1.0),
]


@pytest.mark.parametrize(("higher", "lower", "p"), SIGN_TABLE)
def test_sign_test_matches_the_binomial_table(higher: int, lower: int, p: float) -> None:
    assert sign_test([2.5] * higher + [-0.5] * lower + [0.0] * 3) == p
    assert sign_test([2.5] * lower + [-0.5] * higher) == p


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-9, 9).map(float) | st.floats(-5, 5), min_size=1, max_size=10))
def test_permutation_test_equals_the_enumeration_of_all_flips(differences: list[float]) -> None:
    observed = abs(sum(differences)) - 1e-9 * sum(map(abs, differences))
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(total >= observed for total in sums) / len(sums)
    assert permutation_test(differences, Random(1)) == pytest.approx(expected)


def test_random_flips_approximate_the_exact_p_value() -> None:
    random = Random(7)
    differences = [random.gauss(0.4, 1) for _ in range(MAX_EXACT_DIFFERENCES)]
    exact = permutation_test(differences, random)
    # A difference that is almost zero changes nothing, but there are too many for an enumeration.
    sampled = permutation_test([*differences, 1e-12], random, permutations=40_000)
    assert 0.01 < exact < 0.2
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact / 40_000))


def test_random_flips_never_give_a_p_value_of_zero() -> None:
    assert permutation_test([1.0] * 100, Random(1), permutations=999) == 1 / 1000


def test_permutation_test_of_yes_or_no_values_is_the_sign_test() -> None:
    for higher, lower, p in SIGN_TABLE:
        differences = [1.0] * higher + [-1.0] * lower
        assert permutation_test(differences, Random(1)) == pytest.approx(p)


def test_holm_matches_a_worked_example() -> None:
    """Compare with R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")."""
    corrected = correct_p_values([0.01, 0.04, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_p_values([]) == []
    assert correct_p_values([0.7, 0.9]) == [1, 1]


def test_weighted_holm_gives_the_primary_hypothesis_its_share() -> None:
    weights = [0.5, 0.25, 0.25]
    assert correct_p_values([0.02, 0.5, 0.5], weights) == pytest.approx([0.04, 1, 1])
    # The second is rejected first and leaves 0.75 of alpha for the others.
    assert correct_p_values([0.02, 0.001, 0.5], weights) == pytest.approx([0.03, 0.004, 0.5])


def test_bootstrap_is_reproducible() -> None:
    differences = [1.0, 2.0, 5.0, -1.0, 0.0]
    first = bootstrap_interval(differences, Random(3))
    assert first == bootstrap_interval(differences, Random(3))
    assert first != bootstrap_interval(differences, Random(4))


@settings(deadline=None, max_examples=50)
@given(PAIRS, st.integers(0, 99))
def test_swapping_a_and_b_negates_the_effect(pairs: list[tuple[float, float]], seed: int) -> None:
    a, b = zip(*pairs, strict=True)
    forth = measure_effect(_sample(a, b), Random(seed), bootstrap_resamples=50)
    back = measure_effect(_sample(b, a), Random(seed), bootstrap_resamples=50)
    assert forth.difference is not None
    assert back.difference == -forth.difference
    assert (back.sign_p, back.permutation_p) == (forth.sign_p, forth.permutation_p)
    assert (back.higher, back.lower) == (forth.lower, forth.higher)
    if forth.interval is None:
        assert back.interval is None
    else:
        assert back.interval == (-forth.interval[1], -forth.interval[0])


@settings(deadline=None, max_examples=50)
@given(PAIRS, st.integers(0, 1000))
def test_a_constant_added_to_both_changes_nothing(
    pairs: list[tuple[float, float]], constant: int
) -> None:
    a, b = zip(*pairs, strict=True)
    plain = measure_effect(_sample(a, b), Random(1), bootstrap_resamples=50)
    moved = measure_effect(
        _sample([one + constant for one in a], [one + constant for one in b]),
        Random(1),
        bootstrap_resamples=50,
    )
    for field in ("difference", "standardized", "interval", "sign_p", "permutation_p"):
        assert getattr(plain, field) == getattr(moved, field)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_p_values_keep_their_order(p_values: list[float]) -> None:
    corrected = correct_p_values(p_values)
    assert all(p <= one <= 1 for p, one in zip(p_values, corrected, strict=True))
    by_p = [one for _, one in sorted(zip(p_values, corrected, strict=True))]
    assert by_p == sorted(by_p)


def _sample(a: Sequence[float], b: Sequence[float]) -> PairedSample:
    pairs = enumerate(zip(a, b, strict=True))
    return average_by_task((f"task {at}", float(x), float(y)) for at, (x, y) in pairs)
