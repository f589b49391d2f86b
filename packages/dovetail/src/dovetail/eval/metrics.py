"""Metrics of a pass: exact prefixes, recomputed tokens, tool calls and latencies.

Prefix statistics have two sources: Dovetail's own headers, where it builds the prompts itself, and
the inference of watch mode for other servers. Only numbers that the server's own counts confirm are
used; everything else is unknown.
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
    """One prompt. `is_exact`: it continues the previous prompt and response token for token.

    `new_tokens` are the tokens that it adds; `prompt_tokens` and `cached_tokens` are the server's
    own counts. None is unknown. `is_exact` of a session's first prompt is None: it has no
    predecessor.
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
    """Totals of a pass, as in the JSON report. `later` prompts continue another one.

    `prompt`, `computed` and `again` are None if the server does not report them. `again` is the sum
    over those `again_of` prompts whose new tokens are known. `opening` are the tokens of the
    shortest first prompt of a task: it contains the tools, if the server's template renders them.
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
    """Infer prompts from captured exchanges, as watch mode does.

    A truncated response has no counts: it would make all others unknown.
    """
    analyzer = ExchangeAnalyzer(references)
    try:
        complete = [one for one in exchanges if not (one.has_failed or one.truncated)]
        analyses = [analyzer.analyze(exchange) for exchange in complete]
    finally:
        analyzer.close()
    return [_stats_from_analysis(analysis) for analysis in analyses]


def read_prompt_stats(runs: Iterable[TaskRun]) -> list[PromptStats]:
    """Read the prompt statistics from Dovetail's debug headers."""
    stats: list[PromptStats] = []
    for run in runs:
        steps = [
            step for step in run.steps if not (step.http_error or step.response.connection_error)
        ]
        stats += map(_stats_from_headers, steps, (None, *steps[:-1]))
    return stats


def sum_prefix_stats(prompts: Sequence[PromptStats]) -> PrefixTotals:
    """Sum the statistics of a pass.

    Cached tokens are known if the server reported them at least once in the same pass. Passes use
    different endpoints of the server, and not all of them report cached tokens.
    """
    later = [one for one in prompts if not one.is_first]
    has_counts = all(one.prompt_tokens is not None for one in prompts) and bool(prompts)
    has_cached = has_counts and any(one.cached_tokens is not None for one in prompts)
    recomputed = [
        max(0, _computed_tokens(one) - one.new_tokens)
        for one in later
        if has_cached and one.new_tokens is not None
    ]
    return PrefixTotals(
        later=len(later),
        exact=sum(one.is_exact is True for one in later),
        inexact=sum(one.is_exact is False for one in later),
        prompt=sum(one.prompt_tokens or 0 for one in prompts) if has_counts else None,
        computed=sum(map(_computed_tokens, prompts)) if has_cached else None,
        again=sum(recomputed) if recomputed else None,
        again_of=len(recomputed),
        opening=min(
            (one.prompt_tokens for one in prompts if one.is_first and one.prompt_tokens),
            default=None,
        ),
        causes=dict(Counter(one.break_reason for one in later if one.break_reason is not None)),
        needless=sum(one.avoidable_tokens for one in later),
    )


def _stats_from_analysis(analysis: ExchangeAnalysis) -> PromptStats:
    first = analysis.place == 1
    certain = analysis.basis == "confirmed" and analysis.exact is not None and not first
    return PromptStats(
        is_first=first,
        is_exact=analysis.broke is None if certain else None,
        new_tokens=analysis.exact.prefill_tokens
        if certain and analysis.exact is not None
        else None,
        prompt_tokens=analysis.prompt_tokens,
        cached_tokens=analysis.cached,
        break_reason=analysis.broke.code if certain and analysis.broke is not None else None,
        avoidable_tokens=analysis.needless if certain else 0,
    )


def _stats_from_headers(step: TaskStep, previous: TaskStep | None) -> PromptStats:
    headers = step.response.exchange.response_headers
    usage = step.response.message.usage
    reason = headers.get("x-dovetail-prefix-reason")
    recomputed = headers.get("x-dovetail-prefix-again")
    new: int | None = None
    if previous is not None and recomputed is not None:
        known_tokens = previous.response.message.usage.total_tokens
        new = int(recomputed) if reason is None else max(0, usage.input_tokens - known_tokens)
    return PromptStats(
        is_first=previous is None,
        is_exact=None if new is None else reason is None,
        new_tokens=new,
        prompt_tokens=usage.input_tokens or None,
        cached_tokens=usage.cached_tokens
        or None,  # Dovetail reports 0 if the engine does not report it
        break_reason=None if new is None else reason,
    )


def _computed_tokens(prompt: PromptStats) -> int:
    """Return the tokens that were not cached. Without a report, all count as not cached."""
    return (prompt.prompt_tokens or 0) - (prompt.cached_tokens or 0)


@dataclass(frozen=True)
class ToolCallStats:
    """Tool calls, and how many passed each check. `together` shared a response with others.

    `left_in_text` are responses with a call that the agent did not receive as one.
    """

    made: int = 0
    valid_json: int = 0
    known_tool: int = 0
    fit_schema: int = 0
    together: int = 0
    left_in_text: int = 0


@dataclass(frozen=True)
class LatencyStats:
    """Medians in seconds; None if there are no measurements.

    `first`: time to first token. `idle`: from the last byte of a call to the moment when an agent
    can start its tool. `ahead`: from that moment to the end of the stream.
    """

    first: float | None = None
    idle: float | None = None
    ahead: float | None = None


@dataclass(frozen=True)
class TaskResult:
    """The result of a task."""

    task: str
    solved: bool
    requests: int
    calls: int
    why: str = ""


@dataclass(frozen=True)
class PassMetrics:
    """The metrics of a pass. `refused` is the reason if the server rejected every request."""

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
    """Count tool calls. `reference` has the model's tool call parser."""
    calls = [call for step in steps for call in step.calls]
    request = Request("", tools=build_tool_specs())
    return ToolCallStats(
        made=len(calls),
        valid_json=sum(call.is_valid_json for call in calls),
        known_tool=sum(call.is_known_tool for call in calls),
        fit_schema=sum(call.matches_schema for call in calls),
        together=sum(len(step.calls) for step in steps if len(step.calls) > 1),
        left_in_text=sum(
            bool(find_unparsed_calls(step.response.message, request, reference)) for step in steps
        ),
    )


def compute_latency_stats(steps: Sequence[TaskStep]) -> LatencyStats:
    responses = [step.response for step in steps if step.response.exchange.is_streamed]
    first = [one.first_token for one in responses if one.first_token is not None]
    idle = [call.ready - call.received for one in responses for call in one.call_timings]
    ahead = [one.exchange.ended - call.ready for one in responses for call in one.call_timings]
    return LatencyStats(*(median(each) if each else None for each in (first, idle, ahead)))


def summarize_task(run: TaskRun) -> TaskResult:
    calls = sum(len(step.calls) for step in run.steps)
    return TaskResult(run.task, run.is_solved, len(run.steps), calls, run.failure_reason)


def list_protocol_errors(runs: Sequence[TaskRun]) -> tuple[str, ...]:
    """List protocol errors, each with its task. A context overflow is not one."""
    return tuple(
        f"{run.task}, request {number}: {error}"
        for run in runs
        for number, step in enumerate(run.steps, 1)
        for error in (
            *step.protocol_errors,
            *([step.http_error] if step.http_error and not step.context_overflow else ()),
        )
    )
