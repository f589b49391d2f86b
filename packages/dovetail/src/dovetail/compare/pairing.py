"""Account for the runs of an experiment: which pairs are complete, what is missing, what failed."""

from collections.abc import Iterable, Sequence

import msgspec

from dovetail.compare.records import Experiment, ProfileName, RequestDifference, RunRecord

_PROFILES: tuple[ProfileName, ...] = ("a", "b")
RunKey = tuple[str, int, ProfileName]
RunPair = tuple[RunRecord, RunRecord]


class DroppedPair(msgspec.Struct, frozen=True):
    """A pair that is not compared."""

    task: str
    repetition: int
    reason: str


class TaskComparison(msgspec.Struct, frozen=True):
    """The complete pairs of a task. The tool calls are means over the pairs."""

    task: str
    seeds: tuple[int, ...]
    pairs: int
    solved_a: int
    solved_b: int
    tool_calls_a: float | None
    tool_calls_b: float | None


class RequestDifferenceGroup(msgspec.Struct, frozen=True):
    """Pairs whose requests differ first at the same place, with the first of them as an example."""

    request: int
    path: str
    pairs: int
    task: str
    repetition: int
    example: RequestDifference


def latest_runs(records: Iterable[RunRecord]) -> dict[RunKey, RunRecord]:
    """Return one record per run. A run that was repeated after a failure counts as repeated."""
    found: dict[RunKey, RunRecord] = {}
    for record in records:
        key = (record.task, record.repetition, record.profile)
        if record.status == "completed" or key not in found or found[key].status == "failed":
            found[key] = record
    return found


def list_dropped_pairs(experiment: Experiment, runs: dict[RunKey, RunRecord]) -> list[DroppedPair]:
    """Return the pairs of the experiment that are not complete, with the reason."""
    expected = [(task, at) for task in experiment.tasks for at in range(experiment.runs)]
    dropped = []
    for task, repetition in expected:
        pair: dict[ProfileName, RunRecord | None] = {
            name: runs.get((task, repetition, name)) for name in _PROFILES
        }
        failed = [name for name, run in pair.items() if run is not None and run.status == "failed"]
        missing = [name for name, run in pair.items() if run is None]
        reasons = [f"{' and '.join(failed)} failed"] if failed else []
        reasons += [f"{' and '.join(missing)} not run"] if missing else []
        if reasons:
            dropped.append(DroppedPair(task, repetition, ", ".join(reasons)))
    return dropped


def compare_tasks(tasks: Sequence[str], pairs: Sequence[RunPair]) -> list[TaskComparison]:
    """Return a row per task, also for tasks without a complete pair."""
    found: dict[str, list[RunPair]] = {task: [] for task in tasks}
    for pair in pairs:
        found.setdefault(pair[0].task, []).append(pair)
    return [
        TaskComparison(
            task=task,
            seeds=tuple(a.seed for a, _ in ours),
            pairs=len(ours),
            solved_a=sum(a.solved for a, _ in ours),
            solved_b=sum(b.solved for _, b in ours),
            tool_calls_a=_mean_tool_calls([a for a, _ in ours]),
            tool_calls_b=_mean_tool_calls([b for _, b in ours]),
        )
        for task, ours in found.items()
    ]


def _mean_tool_calls(runs: Sequence[RunRecord]) -> float | None:
    return sum(run.total_tool_calls for run in runs) / len(runs) if runs else None


def group_differences(pairs: Sequence[RunPair]) -> list[RequestDifferenceGroup]:
    """Group the first differences between requests by their place, the earliest request first."""
    found: dict[tuple[int, str], list[tuple[RunRecord, RequestDifference]]] = {}
    for _, b in pairs:
        if (one := b.difference) is not None:
            found.setdefault((one.request, one.path), []).append((b, one))
    return [
        RequestDifferenceGroup(
            request, path, len(ours), ours[0][0].task, ours[0][0].repetition, ours[0][1]
        )
        for (request, path), ours in sorted(found.items(), key=lambda it: (it[0][0], -len(it[1])))
    ]
