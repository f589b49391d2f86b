"""The records of an experiment: what happened in each run of a task under one of two profiles."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

ProfileName = Literal["a", "b"]
#: Failed: the run could not be measured, for example because the endpoint died. The harness may
#: have ended with an error in a completed run.
RunStatus = Literal["completed", "failed"]


class RequestDifference(msgspec.Struct, frozen=True):
    """The first difference between two requests that should be equal.

    `request`: the number of the request in the session, from 0.
    `path`: where the requests differ, for example `input[0].content[1].text`.
    `a`, `b`: excerpts of the values; None if one has no such value.
    """

    request: int
    path: str
    a: str | None
    b: str | None


class RunRecord(msgspec.Struct, frozen=True):
    """One run of a task under one profile. The counts of a failed run are incomplete.

    `repetition`: the number of the pair of this task, from 0. The two runs of a pair have the same
    task, repetition and seed.
    `position`: the order in which the runs of the experiment were started.
    `problem`: why the task is not solved, or why the run failed.
    `tool_calls`: the number of calls by the name of the tool.
    `new_tokens`, `cached_tokens`, `re_prefilled_tokens`: prompt tokens of all requests: those that
    no earlier prompt of the session had, those that the engine had cached, and those that it
    computed again. None if the endpoint does not report them.
    `ttft_seconds`: the time to first token of each request.
    `truncated_outputs`: tool results that the harness truncated.
    `diagnostics`: the number of diagnostics of the server by code.
    `difference`: the first difference to the other run of the pair; it is stored with profile b.
    """

    task: str
    repetition: int
    profile: ProfileName
    seed: int
    position: int
    status: RunStatus
    solved: bool = False
    problem: str = ""
    turns: int = 0
    tool_calls: dict[str, int] = {}
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None
    re_prefilled_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    ttft_seconds: tuple[float, ...] = ()
    wall_seconds: float = 0.0
    truncated_outputs: int = 0
    diagnostics: dict[str, int] = {}
    difference: RequestDifference | None = None

    @property
    def total_tool_calls(self) -> int:
        return sum(self.tool_calls.values())


class Experiment(msgspec.Struct, frozen=True):
    """What was run.

    `seed`: determines the order of the runs and the seeds of the pairs.
    `profiles`: the settings of the two profiles, without keys.
    """

    harness: str
    harness_version: str
    tasks: tuple[str, ...]
    runs: int
    seed: int
    profiles: Mapping[ProfileName, Mapping[str, Any]]


def pair_runs(records: Iterable[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Return the pairs of which both runs are completed, sorted by task and repetition."""
    found: dict[tuple[str, int], dict[ProfileName, RunRecord]] = {}
    for record in records:
        if record.status == "completed":
            found.setdefault((record.task, record.repetition), {})[record.profile] = record
    return [(pair["a"], pair["b"]) for _, pair in sorted(found.items()) if len(pair) == 2]
