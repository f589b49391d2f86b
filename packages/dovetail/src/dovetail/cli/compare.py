"""`dovetail compare`: run tasks under two profiles of the serving path, and compare the runs."""

import asyncio
import json
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dovetail.cli.errors import fail
from dovetail.compare.endpoints import started_endpoints
from dovetail.compare.harness_runs import HARNESS_NAMES, find_program, select_api
from dovetail.compare.planning import plan_pairs
from dovetail.compare.profiles import load_profile
from dovetail.compare.records import Experiment, ProfileName, RunRecord
from dovetail.compare.report import build_report, render_html, render_terminal, to_report_json
from dovetail.compare.runner import ExperimentRunner, RunAbortedError
from dovetail.compare.store import ExperimentStore, PlanFile, read_records
from dovetail.compare.task_set import (
    DEFAULT_TASKS,
    CodingTask,
    CompareError,
    load_tasks,
    verify_checks,
)
from dovetail.telemetry.log import configure_logging

FAILED_RUNS_STATUS = 1
SETUP_ERROR_STATUS = 2
ABORTED_STATUS = 3
INTERRUPTED_STATUS = 130
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def compare(  # noqa: PLR0913 - each is a flag
    harness: Annotated[
        str, typer.Option(help=f"Agent to run: {', '.join(HARNESS_NAMES)}.")
    ] = "builtin",
    a: Annotated[
        str,
        typer.Option(
            "--a", metavar="PROFILE", help="First profile: a TOML file, or key=value,key=value."
        ),
    ] = "",
    b: Annotated[str, typer.Option("--b", metavar="PROFILE", help="Second profile.")] = "",
    tasks: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder with tasks.", show_default="the built-in tasks"),
    ] = DEFAULT_TASKS,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Run only tasks whose name matches (* and ? are wildcards). Repeatable.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of pairs of runs per task.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of pairs to run concurrently.")] = 1,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the results. An experiment that was interrupted there is continued.",
        ),
    ] = Path("dovetail-compare"),
    seed: Annotated[int, typer.Option(help="Seed of the order of the runs and of sampling.")] = 0,
    list_tasks: Annotated[bool, typer.Option("--list", help="List the tasks and exit.")] = False,
) -> None:
    """Compare how an agent behaves under two profiles of the serving path.

    Runs each task under both profiles, in random order, and tests the differences between the runs
    of each pair. The agent runs commands on this machine without confirmation: use a container. The
    exit status is 0 if all runs were measured, whatever the result; 1 if some runs could not be
    measured; 2 if nothing could be run; 3 if an endpoint failed repeatedly or results could not be
    stored; 130 after Ctrl-C. Finished runs are kept in every case: the same command continues.
    """
    configure_logging(level="error")
    try:
        selected = load_tasks(tasks.expanduser(), only or ())
        if list_tasks:
            for task in selected:
                typer.echo(f"{task.id:24}{task.title}")
            return
        if not a or not b:
            raise CompareError("--a and --b are required; each is a TOML file or key=value,...")
        failed = _run(harness, (a, b), selected, (runs, jobs, seed), out)
    except RunAbortedError as error:
        fail(
            "compare",
            f"{error}. Finished runs are kept in {out}; the same command continues",
            ABORTED_STATUS,
        )
    except (CompareError, OSError) as error:
        fail("compare", str(error), SETUP_ERROR_STATUS)
    except KeyboardInterrupt:
        fail(
            "compare",
            f"interrupted. Finished runs are kept in {out}; the same command continues",
            INTERRUPTED_STATUS,
        )
    if failed:
        for record in failed:
            name = f"{record.task}, repetition {record.repetition}, profile {record.profile}"
            _err.print(f"not measured: {name}: {record.problem}", markup=False)
        raise typer.Exit(FAILED_RUNS_STATUS)


def _run(
    harness: str,
    texts: tuple[str, str],
    tasks: tuple[CodingTask, ...],
    counts: tuple[int, int, int],
    out: Path,
) -> list[RunRecord]:
    """Run the experiment and write its report. Returns the runs that could not be measured."""
    runs, jobs, seed = counts
    names: tuple[ProfileName, ProfileName] = ("a", "b")
    profiles = {name: load_profile(text) for name, text in zip(names, texts, strict=True)}
    program = find_program(harness)
    for profile in profiles.values():
        select_api(program, profile)
    verify_checks(tasks)
    task_names = tuple(task.id for task in tasks)
    experiment = Experiment(
        program.name,
        program.version,
        task_names,
        runs,
        seed,
        {name: profile.to_json() for name, profile in profiles.items()},
    )
    pairs = plan_pairs(task_names, runs, seed)
    store = ExperimentStore(out)
    try:
        records = store.open(PlanFile(experiment, {task.id: task.digest() for task in tasks}))
        finished = {key: one for key, one in records.items() if one.status == "completed"}
        total = 2 * len(pairs)
        if len(finished) < total:
            with started_endpoints(profiles, store.log_dir) as endpoints, _progress() as bar:
                shown = bar.add_task("runs", total=total, completed=len(finished))
                runner = ExperimentRunner(
                    program,
                    {task.id: task for task in tasks},
                    endpoints,
                    store,
                    finished,
                    lambda record: _show(bar, shown, record),
                )
                # Like Ctrl-C: the harness must not stay behind.
                for number in (signal.SIGTERM, signal.SIGHUP):
                    if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` does
                        signal.signal(number, _interrupt)
                asyncio.run(runner.run(pairs, jobs))
        found = read_records(out)
        _write_report(experiment, found, out)
    finally:
        store.close()
    return [record for record in found if record.status == "failed"]


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the run, also where SIGINT is ignored, as in a background job of a script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.default_int_handler(number, frame)
    signal.raise_signal(signal.SIGINT)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=_err,
    )


def _show(bar: Progress, shown: object, record: RunRecord) -> None:
    outcome = "solved" if record.solved else record.problem or "not solved"
    name = f"{record.task} {record.repetition} {record.profile}"
    bar.console.print(
        f"{name}: {record.turns} turns, {record.total_tool_calls} tool calls, "
        f"{record.wall_seconds:.1f} s, {outcome}",
        markup=False,
    )
    bar.advance(shown)  # type: ignore[arg-type]


def _write_report(experiment: Experiment, records: list[RunRecord], out: Path) -> None:
    report = build_report(experiment, records)
    render_terminal(report, Console(highlight=False))
    text = json.dumps(to_report_json(report), ensure_ascii=False, indent=2)
    (out / "report.json").write_text(f"{text}\n", "utf-8")
    (out / "report.html").write_text(render_html(report), "utf-8")
    _err.print(f"report: {out / 'report.html'}", markup=False)
