"""Play scripted solutions through the serving path, and write the sessions as token ids."""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from catalog import random_task
from executors import BuiltInExecutor, Executor, PiExecutor
from kit import KITS, Step, Task
from names import FIRST_NAMES, FOLDERS, NOUNS
from serving import (
    Head,
    ServingPath,
    Session,
    built_in_head,
    calls_of,
    load_smollm2,
    recorded_head,
    text_of,
)

from dovetail_model import OutputBlock, TextBlock, ToolCallBlock
from dovetail_parsers import write_message

SECOND_TASK_CHANCE = 0.2
TASK_LABEL_CHANCE = 0.5
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass(frozen=True)
class Sample:
    """The ids of a session after the head, and which of them are trained on."""

    ids: list[int]
    mask: list[bool]


class SessionError(Exception):
    """A scripted solution did not solve its task, or serving changed its tokens."""


def random_head(harness: str, rng: random.Random, recorded: Path | None) -> Head:
    """Return a head with a random run, or date and folder."""
    if harness == "builtin":
        return built_in_head(rng.randrange(10**8))
    assert recorded is not None
    day = date(2026, 1, 1) + timedelta(days=rng.randrange(900))
    parent = rng.choice(
        ("/tmp", "/home/dev", f"/home/{rng.choice(FIRST_NAMES).lower()}", "/srv", "/root", "/work")
    )
    root = (
        f"{parent}/{rng.choice(FOLDERS)}/{rng.choice(NOUNS)}"
        if rng.random() < 0.5
        else f"{parent}/{rng.choice(NOUNS)}"
    )
    if rng.random() < 0.3:
        root = f"/tmp/{rng.choice(NOUNS)}-{rng.randrange(16**6):06x}/work"
    return recorded_head(recorded, harness, day.isoformat(), root)


def create_executor(head: Head, root: Path, task: Task) -> Executor:
    """Create the executor of a harness with the files of a task."""
    if head.harness == "builtin":
        return BuiltInExecutor(root, task.files, task.records)
    return PiExecutor(root, task.files, head.shown_root)


def merge_tasks(one: Task, other: Task) -> Task:
    """Return the first task with the files of both: the other one follows in the session."""
    files = {**other.files, **one.files}
    records = {**other.records, **one.records}
    return Task(one.kind, one.prompt, one.solve, one.check, files, records)


async def play(path: ServingPath, head: Head, tasks: list[Task], rng: random.Random) -> Session:
    """Play the solutions of tasks in one session."""
    first = tasks[0]
    for other in tasks[1:]:
        first = merge_tasks(first, other)
    label = harness_prompt(head, first, rng)
    session = await path.start_session(head, label)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        executor = create_executor(head, Path(scratch), first)
        for at, task in enumerate(tasks):
            if at:
                session.add_user(task.prompt)
            final = await _play_solution(path, session, executor, task, head)
            problem = task.check(executor.files(), final)
            if problem:
                raise SessionError(f"{head.harness} {task.kind}: {problem}")
    if session.inexact_turns:
        raise SessionError(
            f"{head.harness} {first.kind}: {session.inexact_turns} turns are not exact"
        )
    return session


def harness_prompt(head: Head, task: Task, rng: random.Random) -> str:
    """Return the prompt as the harness sends it."""
    if head.harness == "builtin" and rng.random() < TASK_LABEL_CHANCE:
        return f"Task {task.kind}.\n\n{task.prompt}"
    return task.prompt


async def _play_solution(
    path: ServingPath, session: Session, executor: Executor, task: Task, head: Head
) -> str:
    solution = task.solve(KITS[head.harness])
    step = next(solution)
    while True:
        await session.prompt()
        output = [*path.model.tokenizer.encode(write_step(step)), path.stop_id]
        message = await session.accept(output, step.learn)
        calls = calls_of(message)
        if len(calls) != len(step.calls):
            raise SessionError(f"{task.kind}: {len(calls)} calls were parsed of {len(step.calls)}")
        if not calls:
            return text_of(message)
        results = [executor.run(call.name, call.arguments).result for call in calls]
        session.add_results([(c.id, r.text, r.failed) for c, r in zip(calls, results, strict=True)])
        step = solution.send(results)


def write_step(step: Step) -> str:
    """Write a step in the notation of the model's family."""
    blocks: list[OutputBlock] = [TextBlock(step.text)] if step.text else []
    blocks += [
        ToolCallBlock("", call.name, json.dumps(call.arguments, ensure_ascii=False))
        for call in step.calls
    ]
    return write_message(blocks, "hermes")


async def generate(
    path: ServingPath, harness: str, count: int, rng: random.Random, recorded: Path | None
) -> tuple[list[int], list[Sample]]:
    """Generate sessions that share a head. Returns the ids of the head, and the samples."""
    path.reset()
    head = random_head(harness, rng, recorded)
    head_ids = await path.head_ids(head)
    samples: list[Sample] = []
    while len(samples) < count:
        tasks = [random_task(harness, rng)]
        if rng.random() < SECOND_TASK_CHANCE:
            tasks.append(random_task(harness, rng))
            if set(tasks[0].files) & set(tasks[1].files):
                tasks.pop()
        try:
            session = await play(path, head, tasks, rng)
        except SessionError:
            continue  # random names can make a text ambiguous
        if session.ids[: len(head_ids)] != head_ids:
            raise SessionError("a session does not begin with its head")
        mask = [False] * len(session.ids)
        for start, end, learn in session.spans:
            mask[start:end] = [learn] * (end - start)
        samples.append(Sample(session.ids[len(head_ids) :], mask[len(head_ids) :]))
    return head_ids, samples


def write_shard(target: Path, head_ids: list[int], samples: list[Sample]) -> None:
    """Write a shard atomically: readers wait for its name."""
    arrays = {
        "head": np.array(head_ids, np.uint16),
        "ids": np.array([id for sample in samples for id in sample.ids], np.uint16),
        "mask": np.array([bit for sample in samples for bit in sample.mask], np.bool_),
        "lengths": np.array([len(sample.ids) for sample in samples], np.int32),
    }
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    os.replace(partial, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--recorded-pi", type=Path, help="recorded request of Pi")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=range_of, required=True, help="FIRST:STOP:STEP")
    parser.add_argument("--sessions", type=int, default=48, help="sessions per shard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ahead", type=int, default=8, help="unread shards to keep per worker")
    options = parser.parse_args()
    path = ServingPath(load_smollm2(options.model))
    for shard in options.shards:
        rng = random.Random(f"{options.seed} {shard}")
        harness = "pi" if shard % 2 and options.recorded_pi else "builtin"
        made = asyncio.run(generate(path, harness, options.sessions, rng, options.recorded_pi))
        write_shard(options.out / f"{shard:06}.npz", *made)
        wait_for_readers(options)


def wait_for_readers(options: argparse.Namespace) -> None:
    """Wait until the reader has taken enough of this worker's shards."""
    step, first = options.shards.step, options.shards.start

    def count_unread() -> int:
        return sum(int(path.stem) % step == first % step for path in options.out.glob("*.npz"))

    while count_unread() >= options.ahead:
        time.sleep(0.05)


def range_of(text: str) -> range:
    return range(*map(int, text.split(":")))


if __name__ == "__main__":
    main()
