"""`dovetail eval`: run agent tasks on an endpoint, with and without Dovetail."""

import asyncio
import fnmatch
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
import uvloop
from rich.console import Console

from dovetail.cli.errors import fail
from dovetail.engines.registry import EngineSetupError
from dovetail.eval.agent import TaskRun
from dovetail.eval.client import APIS
from dovetail.eval.metrics import PassMetrics
from dovetail.eval.report import render_html, render_terminal, to_report_json
from dovetail.eval.runner import EvalPlan, run_eval
from dovetail.eval.target import EvalError, EvalOptions, EvalTarget, inspect_target
from dovetail.eval.tasks import TASKS, EvalTask
from dovetail.models.loader import ModelLoadError
from dovetail.models.weights import ModelUnavailableError
from dovetail.telemetry.log import configure_logging
from dovetail.watch.reference_model import ParserNames
from dovetail_model import DovetailError, Sampling

EngineChoice = Literal["auto", "vllm", "sglang", "openai"]
_STDOUT = Path("-")
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def evaluate(  # noqa: PLR0913 - each is a flag
    url: Annotated[
        str, typer.Argument(help="The server to try, such as http://127.0.0.1:8000.")
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="The model, by its name there; the first one by default.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="The key that the server asks for.", envvar="DOVETAIL_ENGINE_API_KEY"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder, GGUF file or hub id with the model's tokenizer and template. By default "
            "the folder that the server names, or the hub's cache."
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="How the model writes calls; by default found out.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="How the model writes thoughts; by default found out.")
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="How Dovetail speaks to the server; by default found out.")
    ] = "auto",
    api: Annotated[
        list[str] | None,
        typer.Option(
            help="An API to try with Dovetail: messages, responses, chat. May be repeated; all by "
            "default."
        ),
    ] = None,
    off: Annotated[bool, typer.Option(help="Try it without Dovetail, too.")] = True,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks with such a name (* and ? are allowed); may be repeated."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often each task is done.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="The most requests of a task.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=16, help="The most tokens of an answer.")] = 2048,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 compares best.")] = 0.0,
    seed: Annotated[int, typer.Option(help="For servers that know one.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report for programs; - prints it.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report as a page that stands alone.")
    ] = None,
    list_tasks: Annotated[bool, typer.Option("--list", help="Show the tasks and end.")] = False,
) -> None:
    """Let a model do agent tasks on your own server, with Dovetail before it and without.

    Eight small tasks with tools, each with one right result, run in a scratch folder. The status is
    1 if the protocol failed anywhere, 0 however weak the model is, 2 if nothing could be tried.
    """
    configure_logging(level="error")  # the report has everything else
    try:
        selected = _select_tasks(tasks or ["*"])
        if list_tasks:
            _print_tasks(selected)
            return
        if not url:
            raise EvalError("the address of a server is needed: eval http://127.0.0.1:8000")
        for path in (json_file, html_file):
            _check_writable(path)
        parsers = ParserNames(tool_call_parser, reasoning_parser)
        options = EvalOptions(url, api_key, model, engine, tokenizer, parsers)
        plan = EvalPlan(
            tasks=selected,
            apis=_validate_apis(api or [*APIS]),
            include_baseline=off,
            repeat=repeat,
            max_requests=turns,
            sampling=Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed),
        )
        target, passes = _inspect_and_run(options, plan)
        _write_report(target, passes, json_file, html_file)
    except (
        EvalError,
        ModelLoadError,
        DovetailError,
        EngineSetupError,
        ModelUnavailableError,
    ) as error:
        fail("eval", str(error), status=2)
    except (OSError, ValueError) as error:
        fail("eval", str(error), status=2)
    if any(one.faults for one in passes):
        raise typer.Exit(1)


def _check_writable(path: Path | None) -> None:
    """Fail before the run if a report cannot be written. No empty file is left behind."""
    if path is None or path == _STDOUT:
        return
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise EvalError(f"the report cannot be written to {path}")


def _validate_apis(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in APIS:
            raise EvalError(f"--api {name}: there are {', '.join(APIS)}")
    return tuple(dict.fromkeys(names))


def _select_tasks(patterns: list[str]) -> tuple[EvalTask, ...]:
    selected = [t for t in TASKS if any(fnmatch.fnmatchcase(t.id, each) for each in patterns)]
    if not selected:
        raise EvalError(f"there is no such task, only {', '.join(task.id for task in TASKS)}")
    return tuple(selected)


def _print_tasks(tasks: tuple[EvalTask, ...]) -> None:
    for task in tasks:
        typer.echo(f"{task.id:10}{task.title}")


def _inspect_and_run(options: EvalOptions, plan: EvalPlan) -> tuple[EvalTarget, list[PassMetrics]]:
    # As Ctrl-C does: no scratch folder is left.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        target = runner.run(inspect_target(options))
        _err.print(f"{target.model} at {target.endpoint}", markup=False)
        _err.print(
            f"Dovetail speaks to it as {target.engine}: {target.engine_reason}", markup=False
        )
        return target, runner.run(run_eval(target, plan, _print_progress))


def _print_progress(name: str, run: TaskRun) -> None:
    seconds = sum(step.response.exchange.ended for step in run.steps)
    outcome = "solved" if run.is_solved else f"not solved: {run.failure_reason}"
    count = len(run.steps)
    requests = "1 request" if count == 1 else f"{count} requests"
    _err.print(f"{name}: {run.task}: {requests}, {seconds:.1f} s, {outcome}", markup=False)


def _write_report(
    target: EvalTarget, passes: list[PassMetrics], json_file: Path | None, html_file: Path | None
) -> None:
    report = json.dumps(to_report_json(target, passes), ensure_ascii=False, indent=2) + "\n"
    if json_file == _STDOUT:
        sys.stdout.write(report)
    else:
        Console(highlight=False).print(render_terminal(target, passes))
    if json_file is not None and json_file != _STDOUT:
        json_file.write_text(report)
    if html_file is not None:
        html_file.write_text(render_html(target, passes))
