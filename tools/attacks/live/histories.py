"""Crash histories, in their long form."""

from tools import attack_histories
from tools.attack_histories import Batch
from tools.attacks.scenario import Effort, Outcome, judge


def crash_histories(effort: Effort) -> Outcome:
    count = min(effort.histories, 200) if effort.quick else effort.histories
    result = attack_histories.run(Batch(effort.seed, count))
    return judge(
        {"wrong": 0},
        f"python tools/attack_histories.py --histories {count} --seed {effort.seed}",
        histories=count,
        crashes=result.crashes,
        wrong=result.wrong,
        missed=f"{result.missed_share:.1%} of {result.earlier_right}",
    )
