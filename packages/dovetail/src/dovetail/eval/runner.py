"""The whole run: every pass over every task, then the numbers."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from dovetail.eval.agent import Agent, Run
from dovetail.eval.apis import APIS
from dovetail.eval.client import Speaker
from dovetail.eval.figures import Figures, calls_of, done, faults_of, times_of
from dovetail.eval.metrics import Prefixes, Prompt, observed, sums, told
from dovetail.eval.server import fronted
from dovetail.eval.target import Subject
from dovetail.eval.tasks import SYSTEM, Task
from dovetail.net.http_client import Endpoint
from dovetail.watch.exchange import CapturedExchange
from dovetail_model import Sampling

#: What Dovetail is asked to tell besides: its prefix, and calls as soon as they are complete.
_ASKS = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
_IDS = {"return_token_ids": True}


@dataclass(frozen=True)
class Plan:
    """What is run. `apis` are those of the passes with Dovetail, `off` adds the one without."""

    tasks: tuple[Task, ...]
    apis: tuple[str, ...] = ("messages", "responses", "chat")
    off: bool = True
    repeat: int = 1
    turns: int = 12
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class _Pass:
    """A pass that was run."""

    name: str
    api: str
    dovetail: bool
    runs: tuple[Run, ...]


Progress = Callable[[str, Run], None]
"""Called with the name of a pass and each task that has ended."""


async def accept(subject: Subject, plan: Plan, progress: Progress) -> list[Figures]:
    """All passes, one after the other: they would disturb each other's times and caches.

    Dovetail is put before the endpoint first of all: if that fails, nobody has waited in vain.
    """
    passes: list[_Pass] = []
    nobody: tuple[Endpoint, list[CapturedExchange]] = (subject.endpoint, [])
    async with fronted(subject) if plan.apis else nullcontext(nobody) as (endpoint, heard):
        if plan.off:
            extra = _IDS if subject.asks_ids else {}
            speaker = Speaker(subject.endpoint, APIS["chat"], extra=extra)
            runs = await _tasks(subject, plan, speaker, partial(progress, "off"))
            passes.append(_Pass("off", "chat", False, runs))
        for api in plan.apis:
            name = f"on, {api}"
            speaker = Speaker(endpoint, APIS[api], "dovetail", _ASKS)
            runs = await _tasks(subject, plan, speaker, partial(progress, name))
            passes.append(_Pass(name, api, True, runs))
    prompts = [await asyncio.to_thread(_prompts, one, subject, heard) for one in passes]
    return [_figures(one, sums(each), subject) for one, each in zip(passes, prompts, strict=True)]


def _prompts(one: _Pass, subject: Subject, heard: Sequence[CapturedExchange]) -> list[Prompt]:
    """What is known of a pass's prompts: from Dovetail itself, or from what went by."""
    if not one.dovetail:
        own = [step.answered.exchange for run in one.runs for step in run.steps]
        return observed(own, subject.lenses)
    if subject.engine == "openai":
        return observed(_of_sessions(heard, one.runs), subject.lenses)
    return told(one.runs)


async def _tasks(
    subject: Subject, plan: Plan, speaker: Speaker, progress: Callable[[Run], None]
) -> tuple[Run, ...]:
    """Every task as often as it is wanted. One that fails at first is not asked more.

    Each pass says another number first, or it would find in the server's cache what the pass
    before it has left there.
    """
    system = f"Run {secrets.randbelow(10**8):08}.\n{SYSTEM}"
    agent = Agent(speaker, subject.model, system, plan.sampling, plan.turns)
    runs: list[Run] = []
    for _ in range(plan.repeat):
        for task in plan.tasks:
            runs.append(await agent.run(task, f"accept-{secrets.token_hex(6)}"))
            progress(runs[-1])
            if _given_up(runs):
                return tuple(runs)
    return tuple(runs)


def _refusal(runs: Sequence[Run]) -> str:
    """How the server failed the very first request, if it took none."""
    first = runs[0].steps[0] if runs else None
    return first.refused or first.answered.broke if first is not None else ""


def _given_up(runs: Sequence[Run]) -> bool:
    """Whether to ask no more. A server that hangs would be waited for in every task."""
    broken = [bool(run.steps[-1].answered.broke) for run in runs[-2:]]
    return bool(_refusal(runs)) or broken == [True, True]


def _of_sessions(heard: Sequence[CapturedExchange], runs: Sequence[Run]) -> list[CapturedExchange]:
    """The tasks' own requests. Dovetail asks a few more, to learn what the server can do."""
    sessions = {run.session for run in runs}
    return [one for one in heard if one.request_headers.get("x-session-id") in sessions]


def _figures(one: _Pass, prefixes: Prefixes, subject: Subject) -> Figures:
    steps = [step for run in one.runs for step in run.steps]
    return Figures(
        name=one.name,
        api=one.api,
        dovetail=one.dovetail,
        done=tuple(map(done, one.runs)),
        calls=calls_of(steps, subject.lens),
        times=times_of(steps),
        prefixes=prefixes,
        faults=faults_of(one.runs),
        refused=_refusal(one.runs),
    )
