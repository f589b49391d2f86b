"""Let a model solve tasks in the harnesses' loops, all sessions at once."""

import asyncio
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batch_engine import BatchEngine
from catalog import held_out_tasks
from executors import Executor
from kit import Task
from serving import Head, ServingPath, Session, calls_of, text_of
from sessions import SCRATCH, create_executor, random_head

from dovetail_model import Message

MAX_REQUESTS = 12
MAX_OUTPUT_TOKENS = 400


@dataclass
class Attempt:
    """One task that a model is solving."""

    task: Task
    head: Head
    session: Session
    executor: Executor
    requests: int = 0
    calls: int = 0
    well_formed: int = 0
    final: str | None = None
    problem: str | None = "not finished"

    @property
    def is_running(self) -> bool:
        return self.final is None and self.requests < MAX_REQUESTS


@dataclass
class Figures:
    """The results of one harness."""

    tasks: int = 0
    solved: int = 0
    calls: int = 0
    well_formed: int = 0
    inexact_turns: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, attempt: Attempt) -> None:
        self.tasks += 1
        self.solved += attempt.problem is None
        self.calls += attempt.calls
        self.well_formed += attempt.well_formed
        self.inexact_turns += attempt.session.inexact_turns
        if attempt.problem is not None:
            self.failures.append(f"{attempt.task.kind}: {attempt.problem}")

    def summary(self) -> str:
        share = self.well_formed / self.calls if self.calls else 0.0
        return (
            f"solved {self.solved} of {self.tasks}, calls {self.calls}, well-formed {share:.1%}, "
            f"inexact turns {self.inexact_turns}"
        )


async def run_tasks(
    path: ServingPath,
    engine: BatchEngine,
    tasks: Sequence[tuple[Head, Task]],
    root: Path,
    temperature: float = 0.0,
) -> list[Attempt]:
    """Run tasks to their end. Each gets a folder below `root`."""
    attempts = []
    for number, (head, task) in enumerate(tasks):
        folder = root / str(number)
        folder.mkdir()
        prompt = f"Task {task.kind}.\n\n{task.prompt}" if head.harness == "builtin" else task.prompt
        session = await path.start_session(head, prompt)
        attempts.append(Attempt(task, head, session, create_executor(head, folder, task)))
    while running := {n: a for n, a in enumerate(attempts) if a.is_running}:
        prompts = {number: await attempt.session.prompt() for number, attempt in running.items()}
        fitting = {
            n: ids for n, ids in prompts.items() if len(ids) + MAX_OUTPUT_TOKENS < engine.window
        }
        for number in prompts.keys() - fitting.keys():
            attempts[number].final = ""
        outputs = (
            engine.generate(fitting, MAX_OUTPUT_TOKENS, path.stop_id, temperature)
            if fitting
            else {}
        )
        for number, output in outputs.items():
            attempt = attempts[number]
            attempt.requests += 1
            _react(attempt, await attempt.session.accept(output))
    for attempt in attempts:
        if attempt.final is not None:
            attempt.problem = attempt.task.check(attempt.executor.files(), attempt.final)
    return attempts


def _react(attempt: Attempt, message: Message) -> None:
    """Run the calls of a turn, or end the task."""
    calls = calls_of(message)
    attempt.calls += len(calls)
    if not calls:
        attempt.final = text_of(message)
        lost = attempt.final.count("<tool_call>")  # a call that was left in the text
        attempt.calls += lost
        return
    results = []
    for call in calls:
        executed = attempt.executor.run(call.name, call.arguments)
        attempt.well_formed += executed.well_formed
        results.append((call.id, executed.result.text, executed.result.failed))
    attempt.session.add_results(results)


def evaluate(
    path: ServingPath,
    engine_of: "type[BatchEngine]",
    model: object,
    recorded: Path | None,
    count: int,
    seed: int = 0,
) -> tuple[Mapping[str, Figures], list[Attempt]]:
    """Run held-out tasks of both harnesses."""
    pairs: list[tuple[Head, Task]] = []
    for harness in ("builtin", "pi") if recorded else ("builtin",):
        head = random_head(harness, random.Random(f"held out {seed}"), recorded)
        pairs += [(head, task) for task in held_out_tasks(harness, count, seed)]
    path.reset()
    engine = engine_of(model, len(pairs), 4096)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        attempts = asyncio.run(run_tasks(path, engine, pairs, Path(root)))
    figures: dict[str, Figures] = {}
    for attempt in attempts:
        figures.setdefault(attempt.head.harness, Figures()).add(attempt)
    return figures, attempts


def transcript(path: ServingPath, attempt: Attempt) -> str:
    """Return a session as text, without its head."""
    text = path.model.tokenizer.decode(attempt.session.ids)
    body = text.partition("<|im_end|>")[2]
    return f"===== {attempt.head.harness} {attempt.task.kind}: {attempt.problem}\n{body}\n"
