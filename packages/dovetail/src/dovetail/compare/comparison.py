"""Compare the runs of two profiles: pairs, effects, tests and verdicts.

The probability that any measure is reported as different although the profiles do not differ is at
most alpha. The primary measure has half of alpha, the others share the other half, and Holm's
procedure passes on what a shown difference leaves over. Measures that cannot be significant, since
too few tasks differ, are not tested and take no share.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from dovetail.compare.measures import (
    PRIMARY_MEASURE,
    Measure,
    MeasureUnit,
    format_amount,
    list_measures,
)
from dovetail.compare.power import (
    DEFAULT_ALPHA,
    DEFAULT_POWER,
    max_share_of_differing_tasks,
    min_attainable_p,
    smallest_standardized_effect,
)
from dovetail.compare.records import RunRecord
from dovetail.compare.statistics import (
    DEFAULT_BOOTSTRAP_RESAMPLES,
    PairedEffect,
    PairedSample,
    average_by_task,
    correct_p_values,
    measure_effect,
)

Verdict = Literal["higher", "lower", "no difference shown", "not measured"]
#: The verdicts that state a difference.
DIFFERENT: tuple[Verdict, ...] = ("higher", "lower")
PRIMARY_WEIGHT = 0.5
#: So many tasks must differ, all in the same direction, before a test can be significant.
MIN_DIFFERING_TASKS = math.ceil(1 - math.log2(DEFAULT_ALPHA))


class MeasureComparison(msgspec.Struct, frozen=True):
    """A measure under both profiles.

    `tested`: whether the measure takes part in the correction for multiple comparisons.
    `corrected_p`: the p-value of the permutation test after the correction; None if not tested.
    `detectable`: the smallest difference that is shown with a power of 80 %; None if the sample
    does not allow an estimate.
    `explanation`: the verdict in words.
    """

    name: str
    description: str
    unit: MeasureUnit
    primary: bool
    sample: PairedSample
    effect: PairedEffect
    tested: bool
    corrected_p: float | None
    detectable: float | None
    verdict: Verdict
    explanation: str


def compare_measures(
    pairs: Sequence[tuple[RunRecord, RunRecord]],
    seed: int,
    *,
    bootstrap_resamples: int = DEFAULT_BOOTSTRAP_RESAMPLES,
) -> list[MeasureComparison]:
    """Compare all measures. The seed determines resamples and random sign flips."""
    measures = list_measures(run for pair in pairs for run in pair)
    samples = [
        average_by_task((a.task, one.read(a), one.read(b)) for a, b in pairs) for one in measures
    ]
    effects = [
        measure_effect(
            sample, Random(f"{seed}:{measure.name}"), bootstrap_resamples=bootstrap_resamples
        )
        for measure, sample in zip(measures, samples, strict=True)
    ]
    tested = [at for at, effect in enumerate(effects) if _can_be_significant(effect)]
    weights = _weights([measures[at] for at in tested])
    corrected = correct_p_values([effects[at].permutation_p for at in tested], weights)
    levels = [DEFAULT_ALPHA * one / math.fsum(weights) for one in weights]
    tests = dict(zip(tested, zip(corrected, levels, strict=True), strict=True))
    return [
        _judge(measure, samples[at], effects[at], *tests.get(at, (None, DEFAULT_ALPHA)))
        for at, measure in enumerate(measures)
    ]


def _can_be_significant(effect: PairedEffect) -> bool:
    return min_attainable_p(effect.higher + effect.lower) <= DEFAULT_ALPHA


def _weights(measures: Sequence[Measure]) -> list[float]:
    others = sum(one is not PRIMARY_MEASURE for one in measures)
    return [
        PRIMARY_WEIGHT if one is PRIMARY_MEASURE else (1 - PRIMARY_WEIGHT) / others
        for one in measures
    ]


def _judge(
    measure: Measure,
    sample: PairedSample,
    effect: PairedEffect,
    corrected_p: float | None,
    level: float,
) -> MeasureComparison:
    detectable = _detectable(effect, len(sample.tasks), level) if corrected_p is not None else None
    verdict = _verdict(effect, corrected_p)
    return MeasureComparison(
        name=measure.name,
        description=measure.description,
        unit=measure.unit,
        primary=measure is PRIMARY_MEASURE,
        sample=sample,
        effect=effect,
        tested=corrected_p is not None,
        corrected_p=corrected_p,
        detectable=detectable,
        verdict=verdict,
        explanation=_explain(verdict, effect, sample, measure.unit, detectable),
    )


def _detectable(effect: PairedEffect, tasks: int, level: float) -> float | None:
    """Return the smallest difference that the run could have shown, with the observed variance."""
    standardized = smallest_standardized_effect(tasks, level)
    if standardized is None or not effect.deviation:
        return None
    return standardized * effect.deviation


def _verdict(effect: PairedEffect, corrected_p: float | None) -> Verdict:
    if effect.difference is None:
        return "not measured"
    if corrected_p is None or corrected_p > DEFAULT_ALPHA:
        return "no difference shown"
    return "higher" if effect.difference > 0 else "lower"


def _explain(
    verdict: Verdict,
    effect: PairedEffect,
    sample: PairedSample,
    unit: MeasureUnit,
    detectable: float | None,
) -> str:
    if verdict == "not measured":
        return "not measured: no pair has a value in both runs"
    if verdict != "no difference shown":
        return f"{verdict} under b"
    return f"no difference shown ({_limits(effect, len(sample.tasks), unit, detectable)})"


def _limits(effect: PairedEffect, tasks: int, unit: MeasureUnit, detectable: float | None) -> str:
    """State what the run could have shown."""
    differing = effect.higher + effect.lower
    if tasks < MIN_DIFFERING_TASKS:
        needed = f"at least {MIN_DIFFERING_TASKS} are needed"
        return f"no effect of any size can be shown with so few tasks ({tasks}); {needed}"
    if not differing:
        share = 100 * max_share_of_differing_tasks(tasks)
        equal = f"the values are equal in all {tasks} tasks"
        return f"{equal}; with 95 % confidence, less than {share:.1f} % of such tasks differ"
    if differing < MIN_DIFFERING_TASKS:
        needed = f"a difference can be shown only if at least {MIN_DIFFERING_TASKS} do"
        return f"{differing} of {tasks} tasks differ; {needed}"
    if not effect.deviation:
        return "the difference is the same in all tasks, so its variance is not known"
    if detectable is None:
        return f"{tasks} tasks are too few after the correction for multiple comparisons"
    size = format_amount(detectable, unit, signed=True).removeprefix("+")
    if effect.mean_a and unit != "share":
        size += f", {100 * detectable / effect.mean_a:.0f} % of a"
    power = f"with a power of {100 * DEFAULT_POWER:.0f} %"
    return f"the run could have detected a difference of {size}, {power}"
