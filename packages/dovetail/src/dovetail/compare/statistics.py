"""Statistics of paired samples: effects, intervals and tests.

The unit is the task. Repetitions of a task depend on each other, so their differences are averaged
first, and tests and intervals use one difference per task.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from dovetail.compare.power import t_quantile

DEFAULT_CONFIDENCE = 0.95
DEFAULT_BOOTSTRAP_RESAMPLES = 2_000
DEFAULT_PERMUTATIONS = 10_000
#: Up to this many differences, the permutation test uses all sign flips.
MAX_EXACT_DIFFERENCES = 24
#: Sums of floats in another order are equal up to this share of their size.
_TOLERANCE = 1e-9
_TABLE_BITS = 8


class PairedSample(msgspec.Struct, frozen=True):
    """A measure per task, averaged over the repetitions of the task.

    `a`, `b`, `differences`: one value per task; a difference is b - a.
    `pairs`: the number of pairs that were averaged.
    `missing_pairs`: pairs without the value in at least one run.
    """

    tasks: tuple[str, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    differences: tuple[float, ...]
    pairs: int
    missing_pairs: int


class PairedEffect(msgspec.Struct, frozen=True):
    """The effect of b against a on a measure, with tests. None: not defined for this sample.

    `mean_a`, `mean_b`, `difference`: means over the tasks.
    `relative`: the difference divided by `mean_a`.
    `standardized`: the difference divided by the standard deviation of the differences (d_z).
    `deviation`: the standard deviation of the differences.
    `interval`: of the difference, by a paired bootstrap; None if the differences do not vary.
    `higher`, `lower`: the number of tasks with a higher and with a lower value under b.
    """

    mean_a: float | None
    mean_b: float | None
    difference: float | None
    relative: float | None
    standardized: float | None
    deviation: float | None
    interval: tuple[float, float] | None
    higher: int
    lower: int
    sign_p: float
    permutation_p: float


def average_by_task(
    pairs: Iterable[tuple[str, float | None, float | None]],
) -> PairedSample:
    """Build a sample from pairs (task, a, b). Pairs in which a value is None are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for task, a, b in pairs:
        if a is None or b is None:
            missing += 1
        else:
            found.setdefault(task, []).append((a, b))
    return PairedSample(
        tasks=tuple(found),
        a=tuple(_mean([a for a, _ in values]) for values in found.values()),
        b=tuple(_mean([b for _, b in values]) for values in found.values()),
        differences=tuple(_mean([b - a for a, b in values]) for values in found.values()),
        pairs=sum(len(values) for values in found.values()),
        missing_pairs=missing,
    )


def measure_effect(
    sample: PairedSample,
    random: Random,
    *,
    bootstrap_resamples: int = DEFAULT_BOOTSTRAP_RESAMPLES,
    permutations: int = DEFAULT_PERMUTATIONS,
) -> PairedEffect:
    """Compute the effect, its interval and both tests."""
    differences = sample.differences
    difference = _mean(differences) if differences else None
    mean_a = _mean(sample.a) if differences else None
    deviation = statistics.stdev(differences) if len(differences) > 1 else None
    return PairedEffect(
        mean_a=mean_a,
        mean_b=_mean(sample.b) if differences else None,
        difference=difference,
        relative=_divide(difference, mean_a),
        standardized=_divide(difference, deviation),
        deviation=deviation,
        interval=bootstrap_interval(differences, random, resamples=bootstrap_resamples),
        higher=sum(one > 0 for one in differences),
        lower=sum(one < 0 for one in differences),
        sign_p=sign_test(differences),
        permutation_p=permutation_test(differences, random, permutations=permutations),
    )


def sign_test(differences: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the sign test. Zero differences are left out.

    For one repetition of a yes-or-no measure this is McNemar's exact test.
    """
    higher = sum(one > 0 for one in differences)
    lower = sum(one < 0 for one in differences)
    tosses = higher + lower
    tail = sum(math.comb(tosses, count) for count in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / (1 << tosses))


def permutation_test(
    differences: Sequence[float], random: Random, *, permutations: int = DEFAULT_PERMUTATIONS
) -> float:
    """Return the two-sided p-value of the mean difference under random flips of the signs.

    Few differences: all flips are enumerated. Otherwise p is (k + 1) / (n + 1), where k of n random
    flips have a mean that is at least as far from zero.
    """
    sizes = [abs(one) for one in differences if one]
    threshold = abs(math.fsum(differences)) - _TOLERANCE * math.fsum(sizes)
    if threshold <= 0:
        return 1.0
    if len(sizes) <= MAX_EXACT_DIFFERENCES:
        return _exact_tail(sizes, threshold)
    extreme = sum(abs(total) >= threshold for total in _random_sums(sizes, random, permutations))
    return (extreme + 1) / (permutations + 1)


def bootstrap_interval(
    differences: Sequence[float],
    random: Random,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    resamples: int = DEFAULT_BOOTSTRAP_RESAMPLES,
) -> tuple[float, float] | None:
    """Return a percentile interval of the mean, or None if the differences do not vary.

    Percentile intervals of small samples are too narrow. The percentiles are therefore moved out as
    far as Student's t distribution is wider than the normal one (Hesterberg 2015, section 5.3).
    """
    size = len(differences)
    if size < 2 or min(differences) == max(differences):
        return None
    quantile = t_quantile((1 + confidence) / 2, size - 1) * math.sqrt(size / (size - 1))
    tail = statistics.NormalDist().cdf(-quantile)
    means = sorted(math.fsum(random.choices(differences, k=size)) / size for _ in range(resamples))
    index = max(0, int(tail * (resamples + 1)) - 1)
    return means[index], means[-1 - index]


def correct_p_values(
    p_values: Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """Return p-values corrected for multiple comparisons by Holm's procedure.

    `weights`: the share of each hypothesis in alpha; equal by default (Holm 1979, section 4).
    """
    shares = weights or [1.0] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda at: p_values[at] / shares[at])
    corrected = [1.0] * len(p_values)
    remaining = math.fsum(shares)
    largest = 0.0
    for at in order:
        largest = max(largest, min(1.0, p_values[at] * remaining / shares[at]))
        corrected[at] = largest
        remaining -= shares[at]
    return corrected


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _divide(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    """Return the sums of all combinations of signs."""
    sums = [0.0]
    for size in sizes:
        sums = [total + size for total in sums] + [total - size for total in sums]
    return sums


def _exact_tail(sizes: Sequence[float], threshold: float) -> float:
    """Return the share of the sign flips whose sum is at least as far from zero.

    The sums of two halves are combined, so that the 2**n sums are counted but not built. The
    distribution is symmetric.
    """
    middle = len(sizes) // 2
    right = sorted(_signed_sums(sizes[middle:]))
    above = sum(
        len(right) - bisect_left(right, threshold - left) for left in _signed_sums(sizes[:middle])
    )
    return min(1.0, 2 * above / (1 << len(sizes)))


def _random_sums(sizes: Sequence[float], random: Random, count: int) -> Iterable[float]:
    """Yield sums with random signs. A random byte selects the signs of eight values in a table."""
    padded = [*sizes, *[0.0] * (-len(sizes) % _TABLE_BITS)]
    starts = range(0, len(padded), _TABLE_BITS)
    tables = [_signed_sums(padded[start : start + _TABLE_BITS]) for start in starts]
    for _ in range(count):
        signs = random.randbytes(len(tables))
        yield sum(table[sign] for table, sign in zip(tables, signs, strict=True))
