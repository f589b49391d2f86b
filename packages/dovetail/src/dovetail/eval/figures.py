"""What a pass amounts to, in numbers that can be set beside those of another one."""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.eval.agent import Run, Step
from dovetail.eval.metrics import Prefixes
from dovetail.eval.tools import specs
from dovetail.watch.analysis import median
from dovetail.watch.losses import find_unparsed_calls
from dovetail.watch.reference_model import ReferenceModel
from dovetail_model import Request


@dataclass(frozen=True)
class Calls:
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
class Times:
    """Medians, in seconds; None where nothing was measured.

    `first` from a request to its first word. `idle` from the last byte of a call to the moment
    that an agent can start its tool, `ahead` from then to the end of the stream.
    """

    first: float | None = None
    idle: float | None = None
    ahead: float | None = None


@dataclass(frozen=True)
class Done:
    """A task in one line."""

    task: str
    solved: bool
    requests: int
    calls: int
    why: str = ""


@dataclass(frozen=True)
class Figures:
    """One pass. `refused` says that the server answered nothing at all, and why."""

    name: str
    api: str
    dovetail: bool
    done: tuple[Done, ...]
    calls: Calls
    times: Times
    prefixes: Prefixes
    faults: tuple[str, ...] = ()
    refused: str = ""

    @property
    def solved(self) -> int:
        return sum(one.solved for one in self.done)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.done)


def calls_of(steps: Sequence[Step], lens: ReferenceModel) -> Calls:
    """`lens` knows how the model writes calls."""
    calls = [call for step in steps for call in step.calls]
    offered = Request("", tools=specs())
    return Calls(
        made=len(calls),
        valid_json=sum(call.is_json for call in calls),
        known_tool=sum(call.known for call in calls),
        fit_schema=sum(call.fits for call in calls),
        together=sum(len(step.calls) for step in steps if len(step.calls) > 1),
        left_in_text=sum(
            bool(find_unparsed_calls(step.answered.message, offered, lens)) for step in steps
        ),
    )


def times_of(steps: Sequence[Step]) -> Times:
    answers = [step.answered for step in steps if step.answered.exchange.is_streamed]
    first = [one.first for one in answers if one.first is not None]
    idle = [call.ready - call.came for one in answers for call in one.calls]
    ahead = [one.exchange.ended - call.ready for one in answers for call in one.calls]
    return Times(*(median(each) if each else None for each in (first, idle, ahead)))


def done(run: Run) -> Done:
    calls = sum(len(step.calls) for step in run.steps)
    return Done(run.task, run.solved, len(run.steps), calls, run.why)


def faults_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """What was wrong with the protocol, each with its task. A full window is not."""
    return tuple(
        f"{run.task}, request {at}: {fault}"
        for run in runs
        for at, step in enumerate(run.steps, 1)
        for fault in (*step.faults, *([step.refused] if step.refused and not step.full else ()))
    )
