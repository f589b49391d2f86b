"""Run all passes over all tasks, and compute their metrics."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from dovetail.eval.agent import TaskAgent, TaskRun
from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.metrics import (
    PassMetrics,
    PrefixTotals,
    PromptStats,
    compute_call_stats,
    compute_latency_stats,
    infer_prompt_stats,
    list_protocol_errors,
    read_prompt_stats,
    sum_prefix_stats,
    summarize_task,
)
from dovetail.eval.server import run_dovetail
from dovetail.eval.target import EvalTarget
from dovetail.eval.tasks import SYSTEM_PROMPT, EvalTask
from dovetail.net.http_client import Endpoint
from dovetail.watch.exchange import CapturedExchange
from dovetail_model import Sampling

#: Make Dovetail report its prefix, and emit calls as soon as they are complete.
_DEBUG_HEADERS = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
_TOKEN_ID_FIELDS = {"return_token_ids": True}


@dataclass(frozen=True)
class EvalPlan:
    """The passes and tasks to run.

    `apis` are the passes with Dovetail; `include_baseline` adds a pass without it.
    """

    tasks: tuple[EvalTask, ...]
    apis: tuple[str, ...] = ("messages", "responses", "chat")
    include_baseline: bool = True
    repeat: int = 1
    max_requests: int = 12
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class _CompletedPass:
    """A completed pass."""

    name: str
    api: str
    dovetail: bool
    runs: tuple[TaskRun, ...]


ProgressCallback = Callable[[str, TaskRun], None]
"""Called with the name of a pass and each finished task."""


async def run_eval(
    target: EvalTarget, plan: EvalPlan, progress: ProgressCallback
) -> list[PassMetrics]:
    """Run the passes sequentially: in parallel they would disturb each other's times and caches.

    Dovetail is started before the first pass, so that a failure to start is reported at once.
    """
    passes: list[_CompletedPass] = []
    no_dovetail: tuple[Endpoint, list[CapturedExchange]] = (target.endpoint, [])
    async with (
        run_dovetail(target) if plan.apis else nullcontext(no_dovetail) as (endpoint, captured)
    ):
        if plan.include_baseline:
            extra = _TOKEN_ID_FIELDS if target.supports_token_ids else {}
            client = ApiClient(target.endpoint, APIS["chat"], extra_fields=extra)
            runs = await _run_tasks(target, plan, client, partial(progress, "off"))
            passes.append(_CompletedPass("off", "chat", False, runs))
        for api in plan.apis:
            name = f"on, {api}"
            client = ApiClient(endpoint, APIS[api], "dovetail", _DEBUG_HEADERS)
            runs = await _run_tasks(target, plan, client, partial(progress, name))
            passes.append(_CompletedPass(name, api, True, runs))
    prompts = [
        await asyncio.to_thread(_collect_prompt_stats, completed, target, captured)
        for completed in passes
    ]
    return [
        _compute_metrics(completed, sum_prefix_stats(stats), target)
        for completed, stats in zip(passes, prompts, strict=True)
    ]


def _collect_prompt_stats(
    completed: _CompletedPass, target: EvalTarget, captured: Sequence[CapturedExchange]
) -> list[PromptStats]:
    """Return the prompt statistics of a pass: from Dovetail itself, or inferred from exchanges."""
    if not completed.dovetail:
        own = [step.response.exchange for run in completed.runs for step in run.steps]
        return infer_prompt_stats(own, target.references)
    if target.engine == "openai":
        return infer_prompt_stats(
            _select_session_exchanges(captured, completed.runs), target.references
        )
    return read_prompt_stats(completed.runs)


async def _run_tasks(
    target: EvalTarget, plan: EvalPlan, client: ApiClient, progress: Callable[[TaskRun], None]
) -> tuple[TaskRun, ...]:
    """Run every task `repeat` times. Stops if the first requests fail.

    Each pass uses different session numbers, so that it does not hit the cache of the previous one.
    """
    system = f"Run {secrets.randbelow(10**8):08}.\n{SYSTEM_PROMPT}"
    agent = TaskAgent(client, target.model, system, plan.sampling, plan.max_requests)
    runs: list[TaskRun] = []
    for _ in range(plan.repeat):
        for task in plan.tasks:
            runs.append(await agent.run(task, f"accept-{secrets.token_hex(6)}"))
            progress(runs[-1])
            if _should_stop(runs):
                return tuple(runs)
    return tuple(runs)


def _first_request_error(runs: Sequence[TaskRun]) -> str:
    """Return the error of the first request, or an empty string."""
    first = runs[0].steps[0] if runs else None
    return first.http_error or first.response.connection_error if first is not None else ""


def _should_stop(runs: Sequence[TaskRun]) -> bool:
    """Return whether to stop: an unresponsive server would time out in every task."""
    broken = [bool(run.steps[-1].response.connection_error) for run in runs[-2:]]
    return bool(_first_request_error(runs)) or broken == [True, True]


def _select_session_exchanges(
    exchanges: Sequence[CapturedExchange], runs: Sequence[TaskRun]
) -> list[CapturedExchange]:
    """Return the exchanges of tasks, without those in which Dovetail probes the server."""
    sessions = {run.session for run in runs}
    return [one for one in exchanges if one.request_headers.get("x-session-id") in sessions]


def _compute_metrics(
    completed: _CompletedPass, prefixes: PrefixTotals, target: EvalTarget
) -> PassMetrics:
    steps = [step for run in completed.runs for step in run.steps]
    return PassMetrics(
        name=completed.name,
        api=completed.api,
        dovetail=completed.dovetail,
        done=tuple(map(summarize_task, completed.runs)),
        calls=compute_call_stats(steps, target.reference),
        times=compute_latency_stats(steps),
        prefixes=prefixes,
        faults=list_protocol_errors(completed.runs),
        refused=_first_request_error(completed.runs),
    )
