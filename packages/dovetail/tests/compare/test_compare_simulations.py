"""Statistics of `dovetail compare` on simulated experiments whose truth is known.

The seeds are fixed. Limits are those of a binomial distribution with the stated rate, three
standard deviations wide.
"""

import math
from collections.abc import Callable
from random import Random

import pytest

from dovetail.compare.power import (
    max_share_of_differing_tasks,
    min_attainable_p,
    paired_power,
    smallest_standardized_effect,
    t_quantile,
)
from dovetail.compare.statistics import (
    average_by_task,
    bootstrap_interval,
    correct_p_values,
    permutation_test,
    sign_test,
)

EXPERIMENTS = 1_000
ALPHA = 0.05
Sampler = Callable[[Random], list[float]]


def _limit(rate: float, count: int = EXPERIMENTS) -> float:
    return 3 * math.sqrt(count * rate * (1 - rate))


def _geometric(random: Random, mean: float) -> float:
    """Return a skewed count."""
    return float(int(random.expovariate(1 / mean)))


def _normal(random: Random) -> list[float]:
    return [random.gauss(0, 3) for _ in range(20)]


def _skewed_counts(random: Random) -> list[float]:
    """Tool calls of 30 tasks, each with a mean of its own."""
    means = [random.uniform(1, 25) for _ in range(30)]
    return [_geometric(random, mean) - _geometric(random, mean) for mean in means]


def _ties(random: Random) -> list[float]:
    """A rare event: most tasks do not differ."""
    return [float(random.random() < 0.1) - float(random.random() < 0.1) for _ in range(40)]


def _few_tasks(random: Random) -> list[float]:
    return [_geometric(random, 6) - _geometric(random, 6) for _ in range(7)]


def _clustered_repetitions(random: Random) -> list[float]:
    """Five repetitions of 12 tasks. What one profile does in a task is alike in all repetitions."""
    pairs: list[tuple[str, float | None, float | None]] = []
    for task in range(12):
        a, b = random.uniform(1, 20), random.uniform(1, 20)
        pairs += [(str(task), _geometric(random, a), _geometric(random, b)) for _ in range(5)]
    return list(average_by_task(pairs).differences)


NULL_SHAPES = (_normal, _skewed_counts, _ties, _few_tasks, _clustered_repetitions)


@pytest.mark.parametrize("sample", NULL_SHAPES, ids=lambda shape: shape.__name__.strip("_"))
def test_false_positives_are_limited_to_alpha(sample: Sampler) -> None:
    random = Random(29)
    samples = [sample(random) for _ in range(EXPERIMENTS)]
    permutation = sum(permutation_test(one, random, permutations=499) <= ALPHA for one in samples)
    sign = sum(sign_test(one) <= ALPHA for one in samples)
    assert permutation <= EXPERIMENTS * ALPHA + _limit(ALPHA)
    assert sign <= EXPERIMENTS * ALPHA + _limit(ALPHA)


def test_false_positives_are_not_fewer_than_alpha_without_ties() -> None:
    random = Random(30)
    found = sum(permutation_test(_normal(random), random) <= ALPHA for _ in range(EXPERIMENTS))
    assert abs(found - EXPERIMENTS * ALPHA) <= _limit(ALPHA)


def test_repetitions_as_units_would_find_too_much() -> None:
    """The reason why the task is the unit: the same null, with every repetition as a unit."""
    random = Random(31)
    found = 0
    for _ in range(200):
        differences = []
        for _ in range(12):
            a, b = random.uniform(1, 20), random.uniform(1, 20)
            differences += [_geometric(random, b) - _geometric(random, a) for _ in range(5)]
        found += permutation_test(differences, random, permutations=499) <= ALPHA
    assert found > 200 * ALPHA + _limit(ALPHA, 200)


@pytest.mark.parametrize("weights", [None, [0.5, *[0.1] * 5]], ids=["equal", "primary"])
def test_family_wise_error_is_limited_to_alpha(weights: list[float] | None) -> None:
    """Six measures of one experiment. Half of each is shared, as tokens depend on tool calls."""
    random = Random(32)
    uncorrected = corrected = 0
    for _ in range(EXPERIMENTS):
        shared = [random.gauss(0, 1) for _ in range(16)]
        p_values = [
            permutation_test([one + random.gauss(0, 1) for one in shared], random) for _ in range(6)
        ]
        uncorrected += min(p_values) <= ALPHA
        corrected += min(correct_p_values(p_values, weights)) <= ALPHA
    assert corrected <= EXPERIMENTS * ALPHA + _limit(ALPHA)
    assert uncorrected > EXPERIMENTS * ALPHA + _limit(ALPHA)  # so the correction is needed


@pytest.mark.parametrize(
    ("tasks", "effect", "alpha"),
    [(20, 0.66, 0.05), (20, 0.4, 0.05), (12, 0.9, 0.025), (8, 1.2, 0.05), (6, 1.8, 0.05)],
)
def test_power_is_as_computed(tasks: int, effect: float, alpha: float) -> None:
    random = Random(33)
    found = sum(
        permutation_test([random.gauss(effect, 1) for _ in range(tasks)], random) <= alpha
        for _ in range(EXPERIMENTS)
    )
    computed = paired_power(effect, tasks, alpha)
    assert 0.3 < computed < 0.9
    assert found / EXPERIMENTS == pytest.approx(computed, abs=0.02 + _limit(computed) / EXPERIMENTS)


def test_power_of_skewed_counts_is_about_as_computed() -> None:
    """50 tasks: b adds 50 % to the tool calls. The deviation is that of the experiment itself."""
    random = Random(34)
    tasks, count = 50, 300
    found, effects = 0, []
    for _ in range(count):
        means = [random.uniform(2, 10) for _ in range(tasks)]
        differences = [_geometric(random, 1.5 * one) - _geometric(random, one) for one in means]
        found += permutation_test(differences, random, permutations=499) <= ALPHA
        mean = sum(differences) / tasks
        variance = sum((one - mean) ** 2 for one in differences) / (tasks - 1)
        effects.append((mean, variance))
    mean = sum(one for one, _ in effects) / count
    deviation = math.sqrt(sum(variance for _, variance in effects) / count)
    computed = paired_power(mean / deviation, tasks)
    assert 0.3 < computed < 0.9
    assert found / count == pytest.approx(computed, abs=0.05 + _limit(computed, count) / count)


def test_the_smallest_effect_has_the_stated_power() -> None:
    for tasks in (6, 8, 20, 50):
        effect = smallest_standardized_effect(tasks)
        assert effect is not None
        assert paired_power(effect, tasks) == pytest.approx(0.8, abs=1e-6)
    assert smallest_standardized_effect(5) is None  # the smallest p-value is 1/16
    assert paired_power(10, 5) == 0
    assert min_attainable_p(5) == 1 / 16


def test_power_matches_published_values() -> None:
    """Compare with R: pwr.t.test(d, power=0.8, type="paired") needs 198.2, 33.4 and 14.3 pairs."""
    for effect, tasks in ((0.2, 199), (0.5, 34), (0.8, 15)):
        assert paired_power(effect, tasks - 1) < 0.8 <= paired_power(effect, tasks)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_quantiles_of_t_match_the_table(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, abs=0.0005)


def test_share_of_differing_tasks_matches_the_rule_of_three() -> None:
    assert max_share_of_differing_tasks(100) == pytest.approx(0.03, abs=0.001)
    assert max_share_of_differing_tasks(0) == 1


@pytest.mark.parametrize(("tasks", "skewed"), [(10, False), (30, False), (30, True)])
def test_intervals_cover_the_truth(tasks: int, skewed: bool) -> None:
    random = Random(35)
    count, truth, covered = 500, 2.0, 0
    for _ in range(count):
        values = [
            random.expovariate(1 / truth) if skewed else random.gauss(truth, 3)
            for _ in range(tasks)
        ]
        interval = bootstrap_interval(values, random, resamples=400)
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    # Intervals of very skewed values are known to cover less than they state.
    assert covered / count >= 0.95 - _limit(0.95, count) / count - (0.02 if skewed else 0)
    assert covered < count
