"""The whole run: every pass over every task, then the numbers."""

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

#: What Dovetail is asked to tell besides: its prefix, and calls as soon as they are complete.
_DEBUG_HEADERS = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
_TOKEN_ID_FIELDS = {"return_token_ids": True}


@dataclass(frozen=True)
class EvalPlan:
    """What is run. `apis` are those of the passes with Dovetail, `off` adds the one without."""

    tasks: tuple[EvalTask, ...]
    apis: tuple[str, ...] = ("messages", "responses", "chat")
    include_baseline: bool = True
    repeat: int = 1
    max_requests: int = 12
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class _CompletedPass:
    """A pass that was run."""

    name: str
    api: str
    dovetail: bool
    runs: tuple[TaskRun, ...]


ProgressCallback = Callable[[str, TaskRun], None]
"""Called with the name of a pass and each task that has ended."""


async def run_eval(
    target: EvalTarget, plan: EvalPlan, progress: ProgressCallback
) -> list[PassMetrics]:
    """All passes, one after the other: they would disturb each other's times and caches.

    Dovetail is put before the endpoint first of all: if that fails, nobody has waited in vain.
    """
    passes: list[_CompletedPass] = []
    nobody: tuple[Endpoint, list[CapturedExchange]] = (target.endpoint, [])
    async with run_dovetail(target) if plan.apis else nullcontext(nobody) as (endpoint, heard):
        if plan.include_baseline:
            extra = _TOKEN_ID_FIELDS if target.supports_token_ids else {}
            speaker = ApiClient(target.endpoint, APIS["chat"], extra_fields=extra)
            runs = await _run_tasks(target, plan, speaker, partial(progress, "off"))
            passes.append(_CompletedPass("off", "chat", False, runs))
        for api in plan.apis:
            name = f"on, {api}"
            speaker = ApiClient(endpoint, APIS[api], "dovetail", _DEBUG_HEADERS)
            runs = await _run_tasks(target, plan, speaker, partial(progress, name))
            passes.append(_CompletedPass(name, api, True, runs))
    prompts = [await asyncio.to_thread(_collect_prompt_stats, one, target, heard) for one in passes]
    return [
        _compute_metrics(one, sum_prefix_stats(each), target)
        for one, each in zip(passes, prompts, strict=True)
    ]


def _collect_prompt_stats(
    one: _CompletedPass, subject: EvalTarget, heard: Sequence[CapturedExchange]
) -> list[PromptStats]:
    """What is known of a pass's prompts: from Dovetail itself, or from what went by."""
    if not one.dovetail:
        own = [step.response.exchange for run in one.runs for step in run.steps]
        return infer_prompt_stats(own, subject.references)
    if subject.engine == "openai":
        return infer_prompt_stats(_select_session_exchanges(heard, one.runs), subject.references)
    return read_prompt_stats(one.runs)


async def _run_tasks(
    subject: EvalTarget, plan: EvalPlan, speaker: ApiClient, progress: Callable[[TaskRun], None]
) -> tuple[TaskRun, ...]:
    """Every task as often as it is wanted. One that fails at first is not asked more.

    Each pass says another number first, or it would find in the server's cache what the pass
    before it has left there.
    """
    system = f"Run {secrets.randbelow(10**8):08}.\n{SYSTEM_PROMPT}"
    agent = TaskAgent(speaker, subject.model, system, plan.sampling, plan.max_requests)
    runs: list[TaskRun] = []
    for _ in range(plan.repeat):
        for task in plan.tasks:
            runs.append(await agent.run(task, f"accept-{secrets.token_hex(6)}"))
            progress(runs[-1])
            if _should_stop(runs):
                return tuple(runs)
    return tuple(runs)


def _first_request_error(runs: Sequence[TaskRun]) -> str:
    """How the server failed the very first request, if it took none."""
    first = runs[0].steps[0] if runs else None
    return first.http_error or first.response.connection_error if first is not None else ""


def _should_stop(runs: Sequence[TaskRun]) -> bool:
    """Whether to ask no more. A server that hangs would be waited for in every task."""
    broken = [bool(run.steps[-1].response.connection_error) for run in runs[-2:]]
    return bool(_first_request_error(runs)) or broken == [True, True]


def _select_session_exchanges(
    heard: Sequence[CapturedExchange], runs: Sequence[TaskRun]
) -> list[CapturedExchange]:
    """The tasks' own requests. Dovetail asks a few more, to learn what the server can do."""
    sessions = {run.session for run in runs}
    return [one for one in heard if one.request_headers.get("x-session-id") in sessions]


def _compute_metrics(
    one: _CompletedPass, prefixes: PrefixTotals, subject: EvalTarget
) -> PassMetrics:
    steps = [step for run in one.runs for step in run.steps]
    return PassMetrics(
        name=one.name,
        api=one.api,
        dovetail=one.dovetail,
        done=tuple(map(summarize_task, one.runs)),
        calls=compute_call_stats(steps, subject.reference),
        times=compute_latency_stats(steps),
        prefixes=prefixes,
        faults=list_protocol_errors(one.runs),
        refused=_first_request_error(one.runs),
    )
