"""What became of prompts: which turns stayed a prefix, and how many tokens were computed again.

Two sources, and no third: Dovetail's own word where it makes the prompts itself, and what watch
mode finds out about a server from outside. Only what the server's own counts bear out is counted;
all else is unknown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dovetail.eval.agent import TaskRun, TaskStep
from dovetail.eval.tools import build_tool_specs
from dovetail.watch.analysis import ExchangeAnalysis, median
from dovetail.watch.analyzer import ExchangeAnalyzer
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.findings import find_unparsed_calls
from dovetail.watch.reference_model import ReferenceModel, ReferenceModels
from dovetail_model import Request


@dataclass(frozen=True)
class PromptStats:
    """One prompt. `exact` says that all before what is new is the prompt and answer before it.

    `new` is what it adds to them, `prompt` and `cached` are the server's own numbers. None is
    unknown; `exact` of a session's first prompt is, since nothing is before it.
    """

    is_first: bool
    is_exact: bool | None = None
    new_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    break_reason: str | None = None
    avoidable_tokens: int = 0


@dataclass(frozen=True)
class PrefixTotals:
    """The sums of a pass. `later` prompts go on from another one.

    `prompt`, `computed` and `again` are None where the server does not tell. `again` is the sum
    over those `again_of` prompts of which what is new is known. `opening` are the tokens of the
    shortest prompt that begins a task: it holds the tools, if the server's template shows them.
    """

    later: int
    exact: int
    inexact: int
    prompt: int | None
    computed: int | None
    again: int | None
    again_of: int
    opening: int | None = None
    causes: dict[str, int] = field(default_factory=dict)
    needless: int = 0

    @property
    def unknown_prompts(self) -> int:
        return self.later - self.exact - self.inexact


def infer_prompt_stats(
    exchanges: Iterable[CapturedExchange], references: ReferenceModels
) -> list[PromptStats]:
    """Prompts as watch mode infers them from what went over the wire.

    An answer that broke off has no counts: it would make all others unknown.
    """
    analyst = ExchangeAnalyzer(references)
    try:
        whole = [one for one in exchanges if not (one.has_failed or one.cut)]
        verdicts = [analyst.analyze(exchange) for exchange in whole]
    finally:
        analyst.close()
    return [_stats_from_analysis(verdict) for verdict in verdicts]


def read_prompt_stats(runs: Iterable[TaskRun]) -> list[PromptStats]:
    """Prompts as Dovetail itself tells of them, in headers that were asked for."""
    found: list[PromptStats] = []
    for run in runs:
        steps = [
            step for step in run.steps if not (step.http_error or step.response.connection_error)
        ]
        found += map(_stats_from_headers, steps, (None, *steps[:-1]))
    return found


def sum_prefix_stats(prompts: Sequence[PromptStats]) -> PrefixTotals:
    """What a server had in its cache is known where it told so at least once in the same pass.

    The passes use different addresses of it, and some tell at one and are silent at another.
    """
    later = [one for one in prompts if not one.is_first]
    counted = all(one.prompt_tokens is not None for one in prompts) and bool(prompts)
    known = counted and any(one.cached_tokens is not None for one in prompts)
    again = [
        max(0, _computed_tokens(one) - one.new_tokens)
        for one in later
        if known and one.new_tokens is not None
    ]
    return PrefixTotals(
        later=len(later),
        exact=sum(one.is_exact is True for one in later),
        inexact=sum(one.is_exact is False for one in later),
        prompt=sum(one.prompt_tokens or 0 for one in prompts) if counted else None,
        computed=sum(map(_computed_tokens, prompts)) if known else None,
        again=sum(again) if again else None,
        again_of=len(again),
        opening=min(
            (one.prompt_tokens for one in prompts if one.is_first and one.prompt_tokens),
            default=None,
        ),
        causes=dict(Counter(one.break_reason for one in later if one.break_reason is not None)),
        needless=sum(one.avoidable_tokens for one in later),
    )


def _stats_from_analysis(verdict: ExchangeAnalysis) -> PromptStats:
    first = verdict.place == 1
    sure = verdict.basis == "confirmed" and verdict.exact is not None and not first
    return PromptStats(
        is_first=first,
        is_exact=verdict.broke is None if sure else None,
        new_tokens=verdict.exact.prefill_tokens if sure and verdict.exact is not None else None,
        prompt_tokens=verdict.prompt_tokens,
        cached_tokens=verdict.cached,
        break_reason=verdict.broke.code if sure and verdict.broke is not None else None,
        avoidable_tokens=verdict.needless if sure else 0,
    )


def _stats_from_headers(step: TaskStep, before: TaskStep | None) -> PromptStats:
    headers = step.response.exchange.answer_headers
    usage = step.response.message.usage
    reason = headers.get("x-dovetail-prefix-reason")
    again = headers.get("x-dovetail-prefix-again")
    new: int | None = None
    if before is not None and again is not None:
        known = before.response.message.usage.total_tokens
        new = int(again) if reason is None else max(0, usage.input_tokens - known)
    return PromptStats(
        is_first=before is None,
        is_exact=None if new is None else reason is None,
        new_tokens=new,
        prompt_tokens=usage.input_tokens or None,
        cached_tokens=usage.cached_tokens or None,  # 0 is what Dovetail says where nobody tells it
        break_reason=None if new is None else reason,
    )


def _computed_tokens(prompt: PromptStats) -> int:
    """Tokens that the server did not have in its cache. What it does not mention it had not."""
    return (prompt.prompt_tokens or 0) - (prompt.cached_tokens or 0)


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
