"""Run held-out tasks against a running server: with the built-in harness, or with the real Pi.

Start the server and this program in a namespace with only loopback and a read-only file system
except for the scratch folder: Pi runs the commands that the model chooses.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from catalog import held_out_tasks
from kit import Task
from serving import load_smollm2

from dovetail.eval.agent import TaskAgent, TaskRun
from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.metrics import read_prompt_stats, sum_prefix_stats
from dovetail.eval.tasks import SYSTEM_PROMPT, EvalTask
from dovetail.eval.tools import Workspace
from dovetail.net.http_client import Endpoint
from dovetail_model import Sampling, TextBlock

MAX_REQUESTS = 12
PI_TIMEOUT_SECONDS = 300
PI_SETTINGS = {"compaction": {"enabled": False}, "retry": {"enabled": False}}
_REPREFILLED = re.compile(r"^dovetail_reprefilled_tokens_total\{.*\} ([\d.e+]+)$", re.M)


class Tally:
    """Counts results and prints each task."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.calls = self.well_formed = 0

    def add(
        self, task: Task, problem: str | None, calls: int, well_formed: int, seconds: float
    ) -> None:
        self.calls += calls
        self.well_formed += well_formed
        self.rows.append(
            {"kind": task.kind, "problem": problem, "calls": calls, "seconds": round(seconds, 1)}
        )
        print(
            (
                f"{len(self.rows):3} {task.kind:16} {calls} calls {seconds:5.1f} s  "
                f"{problem or 'solved'}"
            ),
            flush=True,
        )

    def summary(self) -> str:
        solved = sum(row["problem"] is None for row in self.rows)
        share = self.well_formed / max(1, self.calls)
        seconds = sum(float(str(row["seconds"])) for row in self.rows)
        return (
            f"solved {solved} of {len(self.rows)}, calls {self.calls}, well-formed "
            f"{share:.1%}, {seconds:.0f} s"
        )


async def run_built_in(url: str, model: str, api: str, tasks: list[Task], tally: Tally) -> None:
    """Run tasks with the agent of `dovetail eval`."""
    headers = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
    client = ApiClient(Endpoint.parse(url), APIS[api], "dovetail", headers)
    sampling = Sampling(temperature=0.0, max_tokens=400)
    agent = TaskAgent(client, model, f"Run 31415926.\n{SYSTEM_PROMPT}", sampling, MAX_REQUESTS)
    runs: list[TaskRun] = []
    for number, task in enumerate(tasks):
        files: dict[str, str] = {}

        def collect(workspace: Workspace, files: dict[str, str] = files) -> None:
            files.update({path: workspace.read(path) for path in workspace.list_files()})

        wanted = EvalTask(task.kind, task.kind, task.prompt, collect, task.files, task.records)
        started = time.monotonic()
        run = await agent.run(wanted, f"check-{os.getpid()}-{number}")
        runs.append(run)
        calls = [call for step in run.steps for call in step.calls]
        last = run.steps[-1]
        final = "".join(b.text for b in last.response.message.blocks if isinstance(b, TextBlock))
        problem = last.http_error or task.check(files, "" if last.calls else final)
        good = sum(call.matches_schema for call in calls)
        tally.add(task, problem, len(calls), good, time.monotonic() - started)
    print(sum_prefix_stats(read_prompt_stats(runs)))


def run_pi(
    url: str, model: str, api: str, tasks: list[Task], tally: Tally, options: argparse.Namespace
) -> None:
    """Run tasks with the real Pi, in one folder, so that the head of its prompts stays the same."""
    home, work = options.scratch / "home", options.scratch / "work"
    for task in tasks:
        for folder in (home, work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        settings = home / ".pi" / "agent" / "settings.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(PI_SETTINGS))
        for path, content in task.files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(content)
        started = time.monotonic()
        calls, good, final = _run_pi_once(url, model, api, task, options)
        files = {
            path.relative_to(work).as_posix(): path.read_text(errors="replace")
            for path in sorted(work.rglob("*"))
            if path.is_file() and path.suffix != ".pyc"
        }
        tally.add(task, task.check(files, final), calls, good, time.monotonic() - started)


def _run_pi_once(
    url: str, model: str, api: str, task: Task, options: argparse.Namespace
) -> tuple[int, int, str]:
    """Return the calls, those of them that Pi accepted, and the final text."""
    command = [sys.executable, "-m", "dovetail", "launch", "pi", "--url", url, "--model", model]
    command += ["--api", api, "--", "--mode", "json", "--thinking", "off", "-p", task.prompt]
    environment = {
        "PATH": f"{options.programs}:{os.environ['PATH']}",
        "HOME": str(options.scratch / "home"),
        "LANG": "C.UTF-8",
        "DOVETAIL_HOME": str(options.scratch / "launch"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PI_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "DISABLE_TELEMETRY": "1",
    }
    try:
        ran = subprocess.run(
            command,
            cwd=options.scratch / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PI_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 0, 0, ""
    if ran.returncode:
        print(ran.stderr[-500:], file=sys.stderr)
    events = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    messages = [event["message"] for event in events if event["type"] == "message_end"]
    calls = [
        part
        for m in messages
        if m["role"] == "assistant"
        for part in m["content"]
        if part["type"] == "toolCall"
    ]
    refused = [
        m for m in messages if m["role"] == "toolResult" and m.get("isError") and _is_refusal(m)
    ]
    replies = [m for m in messages if m["role"] == "assistant"]
    final = (
        "".join(p["text"] for p in replies[-1]["content"] if p["type"] == "text") if replies else ""
    )
    return len(calls), len(calls) - len(refused), final


def _is_refusal(message: dict[str, object]) -> bool:
    """Return whether Pi rejected a call because of its name or its arguments."""
    text = json.dumps(message["content"])
    return (
        "Validation failed for tool" in text or re.search(r"Tool \w+ not found", text) is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("harness", choices=("builtin", "pi"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="smollm2-agent")
    parser.add_argument("--weights", type=Path, required=True, help="GGUF file, for its words")
    parser.add_argument("--api", default="chat")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=Path, help="folder with Pi")
    parser.add_argument("--scratch", type=Path, help="folder for the home and the files of Pi")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load_smollm2(options.weights)
    tasks = held_out_tasks(options.harness, options.first + options.tasks, options.seed)[
        options.first :
    ]
    tally = Tally()
    if options.harness == "builtin":
        asyncio.run(run_built_in(options.url, options.model, options.api, tasks, tally))
    else:
        run_pi(options.url, options.model, options.api, tasks, tally, options)
    print(tally.summary())
    with urlopen(f"{options.url}/metrics") as response:
        print(
            "re-prefilled tokens of the server so far:",
            _REPREFILLED.findall(response.read().decode()),
        )
    if options.json:
        options.json.write_text(json.dumps(tally.rows))


if __name__ == "__main__":
    main()
