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
        str,
        typer.Argument(metavar="URL", help="Server to evaluate, such as http://127.0.0.1:8000."),
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="Model name on the server; by default the first listed.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="API key for the server.", envvar="DOVETAIL_ENGINE_API_KEY"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder, GGUF file or Hugging Face Hub id with the model's tokenizer and chat "
            "template. By default the folder that the server reports, or the Hub cache."
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="Tool call parser; by default detected from the model.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="Reasoning parser; by default detected from the model.")
    ] = None,
    engine: Annotated[
        EngineChoice,
        typer.Option(help="How Dovetail connects to the server; auto detects the server."),
    ] = "auto",
    api: Annotated[
        list[str] | None,
        typer.Option(
            metavar="API",
            help="API to evaluate with Dovetail: messages, responses or chat. Repeatable; all by "
            "default.",
        ),
    ] = None,
    off: Annotated[
        bool,
        typer.Option(
            show_default=False,
            help="Evaluate the server without Dovetail, too, as the baseline (the default). "
            "--no-off skips the baseline.",
        ),
    ] = True,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Run only tasks whose name matches (* and ? are wildcards). Repeatable.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How many times to run each task.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="Maximum number of requests per task.")] = 12,
    max_tokens: Annotated[
        int, typer.Option(min=16, help="Maximum number of output tokens per request.")
    ] = 2048,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 gives comparable results.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Sampling seed, for servers that support it.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report as JSON; - writes to stdout.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report as a self-contained HTML page.")
    ] = None,
    list_tasks: Annotated[bool, typer.Option("--list", help="List the tasks and exit.")] = False,
) -> None:
    """Run agent tasks on your server, with and without Dovetail.

    Runs eight small tool-calling tasks, each with one correct result, in a scratch folder. The exit
    status is 0 if there were no protocol errors, whatever the model solved; 1 if there were
    protocol errors; 2 if nothing could be evaluated.
    """
    configure_logging(level="error")  # the report contains the rest
    try:
        selected = _select_tasks(tasks or ["*"])
        if list_tasks:
            _print_tasks(selected)
            return
        if not url:
            raise EvalError("URL is missing; example: dovetail eval http://127.0.0.1:8000")
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
        raise EvalError(f"cannot write the report to {path}")


def _validate_apis(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in APIS:
            raise EvalError(f"--api must be one of {', '.join(APIS)}, got {name!r}")
    return tuple(dict.fromkeys(names))


def _select_tasks(patterns: list[str]) -> tuple[EvalTask, ...]:
    selected = [t for t in TASKS if any(fnmatch.fnmatchcase(t.id, each) for each in patterns)]
    if not selected:
        raise EvalError(f"--tasks matches none of {', '.join(task.id for task in TASKS)}")
    return tuple(selected)


def _print_tasks(tasks: tuple[EvalTask, ...]) -> None:
    for task in tasks:
        typer.echo(f"{task.id:10}{task.title}")


def _inspect_and_run(options: EvalOptions, plan: EvalPlan) -> tuple[EvalTarget, list[PassMetrics]]:
    # Handle SIGTERM like Ctrl-C, so that the scratch folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        target = runner.run(inspect_target(options))
        _err.print(f"{target.model} at {target.endpoint}", markup=False)
        _err.print(
            f"Dovetail connects to it as {target.engine}: {target.engine_reason}", markup=False
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
