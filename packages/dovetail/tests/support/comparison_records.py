"""Records of experiments for tests of `dovetail compare`."""

from collections.abc import Callable
from random import Random
from typing import Any

from dovetail.compare.records import Experiment, ProfileName, RunRecord

#: Returns the fields of a run: random numbers, profile, task and repetition are given.
FieldMaker = Callable[[Random, ProfileName, int, int], dict[str, Any]]


def make_experiment(tasks: int, runs: int = 1, **fields: Any) -> Experiment:
    values: dict[str, Any] = {
        "harness": "codex",
        "harness_version": "1.2.3",
        "seed": 7,
        "profiles": {"a": {"alias": "native"}, "b": {"alias": "other"}},
    }
    return Experiment(
        tasks=tuple(f"task-{at:02}" for at in range(tasks)), runs=runs, **values | fields
    )


def make_records(experiment: Experiment, make: FieldMaker, seed: int = 1) -> list[RunRecord]:
    """Return a record per run. A run is completed unless `make` returns another status."""
    random = Random(seed)
    records: list[RunRecord] = []
    for at, task in enumerate(experiment.tasks):
        for repetition in range(experiment.runs):
            order: list[ProfileName] = ["a", "b"]
            random.shuffle(order)
            for profile in order:
                fields: dict[str, Any] = {"status": "completed", "solved": True}
                fields |= make(random, profile, at, repetition)
                records.append(
                    RunRecord(
                        task=task,
                        repetition=repetition,
                        profile=profile,
                        seed=1000 + at,
                        position=len(records),
                        **fields,
                    )
                )
    return records
