"""What a pass amounts to, in numbers that can be set beside those of another one."""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.eval.agent import TaskRun, TaskStep
from dovetail.eval.metrics import PrefixTotals
from dovetail.eval.tools import build_tool_specs
from dovetail.watch.analysis import median
from dovetail.watch.findings import find_unparsed_calls
from dovetail.watch.reference_model import ReferenceModel
from dovetail_model import Request


@dataclass(frozen=True)
class ToolCallStats:
    """Calls that were made, and how many were right so far. `together` came with others.

    `left_in_text` are answers in which the model made a call that the agent was not given as one.
    """

    made: int = 0
    valid_json: int = 0
    known_tool: int = 0
    fit_schema: int = 0
    together: int = 0
    left_in_text: int = 0


@dataclass(frozen=True)
class LatencyStats:
    """Medians, in seconds; None where nothing was measured.

    `first` from a request to its first word. `idle` from the last byte of a call to the moment
    that an agent can start its tool, `ahead` from then to the end of the stream.
    """

    first: float | None = None
    idle: float | None = None
    ahead: float | None = None


@dataclass(frozen=True)
class TaskResult:
    """A task in one line."""

    task: str
    solved: bool
    requests: int
    calls: int
    why: str = ""


@dataclass(frozen=True)
class PassMetrics:
    """One pass. `refused` says that the server answered nothing at all, and why."""

    name: str
    api: str
    dovetail: bool
    done: tuple[TaskResult, ...]
    calls: ToolCallStats
    times: LatencyStats
    prefixes: PrefixTotals
    faults: tuple[str, ...] = ()
    refused: str = ""

    @property
    def solved_tasks(self) -> int:
        return sum(one.solved for one in self.done)

    @property
    def total_requests(self) -> int:
        return sum(one.requests for one in self.done)


def compute_call_stats(steps: Sequence[TaskStep], reference: ReferenceModel) -> ToolCallStats:
    """`lens` knows how the model writes calls."""
    calls = [call for step in steps for call in step.calls]
    offered = Request("", tools=build_tool_specs())
    return ToolCallStats(
        made=len(calls),
        valid_json=sum(call.is_valid_json for call in calls),
        known_tool=sum(call.is_known_tool for call in calls),
        fit_schema=sum(call.matches_schema for call in calls),
        together=sum(len(step.calls) for step in steps if len(step.calls) > 1),
        left_in_text=sum(
            bool(find_unparsed_calls(step.response.message, offered, reference)) for step in steps
        ),
    )


def compute_latency_stats(steps: Sequence[TaskStep]) -> LatencyStats:
    answers = [step.response for step in steps if step.response.exchange.is_streamed]
    first = [one.first_token for one in answers if one.first_token is not None]
    idle = [call.ready - call.received for one in answers for call in one.call_timings]
    ahead = [one.exchange.ended - call.ready for one in answers for call in one.call_timings]
    return LatencyStats(*(median(each) if each else None for each in (first, idle, ahead)))


def summarize_task(run: TaskRun) -> TaskResult:
    calls = sum(len(step.calls) for step in run.steps)
    return TaskResult(run.task, run.is_solved, len(run.steps), calls, run.failure_reason)


def list_protocol_errors(runs: Sequence[TaskRun]) -> tuple[str, ...]:
    """What was wrong with the protocol, each with its task. A full window is not."""
    return tuple(
        f"{run.task}, request {at}: {fault}"
        for run in runs
        for at, step in enumerate(run.steps, 1)
        for fault in (
            *step.protocol_errors,
            *([step.http_error] if step.http_error and not step.context_overflow else ()),
        )
    )
