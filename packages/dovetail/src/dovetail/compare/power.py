"""The power of a paired comparison, and the smallest effect that it can detect.

The power is that of the paired t-test, which the permutation test by sign flips approaches, at the
largest p-value up to alpha that the flips of so many signs can have. The probabilities of the
noncentral t distribution are approximated by a normal distribution (Abramowitz and Stegun,
26.7.10).
"""

import math
from functools import cache
from statistics import NormalDist

DEFAULT_ALPHA = 0.05
DEFAULT_POWER = 0.8
_BISECTION_STEPS = 100


def paired_power(effect: float, tasks: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Return the probability that a two-sided test shows an effect.

    `effect`: the mean difference divided by the standard deviation of the differences.
    """
    normal = NormalDist()
    step = min_attainable_p(tasks)
    steps = math.floor(alpha / step)
    if steps == 0:
        return 0.0
    if steps == 1:  # all differences must have the same sign
        return normal.cdf(effect) ** tasks + normal.cdf(-effect) ** tasks
    freedom = tasks - 1
    critical = t_quantile(1 - steps * step / 2, freedom)
    shift = effect * math.sqrt(tasks)
    scale = math.sqrt(1 + critical**2 / (2 * freedom))
    center = critical * (1 - 1 / (4 * freedom))
    return normal.cdf((shift - center) / scale) + normal.cdf((-shift - center) / scale)


@cache
def smallest_standardized_effect(
    tasks: int, alpha: float = DEFAULT_ALPHA, power: float = DEFAULT_POWER
) -> float | None:
    """Return the smallest effect that is shown with this power; None if no effect can be shown."""
    if min_attainable_p(tasks) > alpha:
        return None
    low, high = 0.0, 1.0
    while paired_power(high, tasks, alpha) < power:
        high *= 2
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        if paired_power(middle, tasks, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def min_attainable_p(tasks: int) -> float:
    """Return the smallest p-value of a test by sign flips: all differences have the same sign."""
    return min(1.0, 2.0 ** (1 - tasks))


def max_share_of_differing_tasks(tasks: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Return the upper confidence bound of the share of tasks that differ, if none of them did."""
    return 1.0 if tasks == 0 else 1 - alpha ** (1 / tasks)


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution, for a probability of 0.5 or more."""
    low, high = 0.0, 1.0
    while _probability_within(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        if _probability_within(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return high


def _probability_within(t: float, freedom: int) -> float:
    """Return P(-t < T < t). The series are finite (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for index in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (index - 1) / index
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
