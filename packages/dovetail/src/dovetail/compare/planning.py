"""The order of the runs: paired and random, determined by the seed of the experiment."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dovetail.compare.records import ProfileName

_MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class PlannedRun:
    """A run of a pair. `position`: its place in the order of the experiment."""

    task: str
    repetition: int
    profile: ProfileName
    seed: int
    position: int

    @property
    def key(self) -> tuple[str, int, ProfileName]:
        return self.task, self.repetition, self.profile

    @property
    def name(self) -> str:
        return f"{self.task}.{self.repetition}.{self.profile}"


PlannedPair = tuple[PlannedRun, PlannedRun]
"""The two runs of a pair, in the order in which they are run."""


def plan_pairs(tasks: Sequence[str], runs: int, seed: int) -> list[PlannedPair]:
    """Return all pairs in random order, with the profile that goes first chosen at random.

    The order depends only on the arguments. Each pair has a seed for sampling.
    """
    random = Random(seed)
    cells = [(task, repetition) for task in tasks for repetition in range(runs)]
    random.shuffle(cells)
    pairs: list[PlannedPair] = []
    for number, (task, repetition) in enumerate(cells):
        pair_seed = random.randrange(_MAX_SEED)
        names: tuple[ProfileName, ProfileName] = ("a", "b") if random.random() < 0.5 else ("b", "a")
        first, second = (
            PlannedRun(task, repetition, name, pair_seed, 2 * number + place)
            for place, name in enumerate(names)
        )
        pairs.append((first, second))
    return pairs
