"""The command `dovetail-verify URL`, and `dovetail verify`, which can also start a server."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dovetail_verify.check import Check, CheckResult
from dovetail_verify.html_report import render_html
from dovetail_verify.http_client import Endpoint, TargetUnreachable
from dovetail_verify.report import VerifyReport, report_to_dict
from dovetail_verify.scripted import FileRecording, render_script
from dovetail_verify.suite import (
    BLACK_BOX_CHECKS,
    SCRIPTED_CHECKS,
    TargetUnusable,
    discover_target,
    run_checks,
    select_checks,
)
from dovetail_verify.target import TargetServer
from dovetail_verify.terminal_report import print_report, show_progress

PROGRAM = "dovetail-verify"
DEFAULT_TIMEOUT_SECONDS = 120.0
_FAILED_STATUS = 1
_ERROR_STATUS = 2
_INTERRUPTED_STATUS = 130  # the status that shells use for Ctrl-C
_URL_HELP = "URL of the server, such as http://127.0.0.1:8000."


@dataclass(frozen=True)
class TargetOptions:
    """How to reach the server, and which model to use."""

    url: str
    model: str | None = None
    api_key: str | None = None
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    record_path: Path | None = None


@dataclass(frozen=True)
class LocalServer:
    """A server that the command can start: its description for the help, and how to start it."""

    description: str
    start: Callable[[], AbstractContextManager[TargetOptions]]


@dataclass(frozen=True)
class OutputOptions:
    """Where to write the report, and whether to show the checks that passed."""

    json_file: str | None
    html_file: Path | None
    show_all: bool

    def console(self) -> Console:
        """Return a console. It uses standard error if the JSON report goes to standard output."""
        return Console(stderr=self.json_file == "-")


def build_command(program: str, local: LocalServer | None = None) -> Callable[..., None]:
    """Return the command as a function for typer. Without a URL it checks `local`, if given."""
    url_help = f"{_URL_HELP} Without a URL: {local.description}." if local else _URL_HELP

    def verify(  # noqa: PLR0913 - each is a flag
        url: Annotated[str, typer.Argument(metavar="URL", help=url_help)] = "",
        model: Annotated[
            str | None,
            typer.Option(help="Model to use; by default the first one that the server lists."),
        ] = None,
        api_key: Annotated[
            str | None, typer.Option(help="API key that the server requires.")
        ] = None,
        only: Annotated[
            list[str] | None,
            typer.Option(
                metavar="PATTERN",
                help="Checks to run: ids, clauses or patterns (messages.stream, CC-4, *.ids.*). "
                "Repeatable.",
            ),
        ] = None,
        timeout: Annotated[
            float, typer.Option(min=1, help="Seconds without data after which a check fails.")
        ] = DEFAULT_TIMEOUT_SECONDS,
        json_file: Annotated[
            str | None, typer.Option("--json", help="Write the report as JSON; - prints it.")
        ] = None,
        html_file: Annotated[
            Path | None, typer.Option("--html", help="Write the report as one HTML file.")
        ] = None,
        show_all: Annotated[
            bool, typer.Option("--all", help="Also show the checks that passed.")
        ] = False,
        list_checks: Annotated[
            bool, typer.Option("--list", help="List the checks and exit.")
        ] = False,
        scripted: Annotated[
            bool,
            typer.Option(
                "--scripted",
                help="Also run the checks that require the scripted engine behind the server.",
            ),
        ] = False,
        engine_record: Annotated[
            Path | None, typer.Option(help="File that the scripted engine writes with --record.")
        ] = None,
        print_script: Annotated[
            str | None,
            typer.Option(metavar="FAMILY", help="Print the script for a model family and exit."),
        ] = None,
    ) -> None:
        """Check a server against the requirements of agent harnesses.

        A failed check is reported with its clause, the request, the response, and what a user of an
        agent notices. The exit status is 1 if a check failed, and 2 if the server could not be
        checked.
        """
        with _exit_on_error(program):
            if print_script is not None:
                typer.echo(render_script(print_script), nl=False)
                return
            if (scripted or engine_record) and not (scripted and engine_record and url):
                raise ValueError("--scripted requires the URL of a server and --engine-record FILE")
            checks = _choose_checks(only or [], with_scripted=scripted or list_checks or not url)
            if list_checks:
                _print_checks(checks)
                return
            options = TargetOptions(url, model, api_key, timeout, engine_record)
            with _open_target(options, local) as opened:
                status = run_suite(opened, checks, OutputOptions(json_file, html_file, show_all))
        if status:
            raise typer.Exit(status)

    return verify


def main() -> None:
    """Entry point of `dovetail-verify`."""
    app = typer.Typer(
        name=PROGRAM, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.command()(build_command(PROGRAM))
    app()


@contextmanager
def _exit_on_error(program: str) -> Iterator[None]:
    """Print an error as one line and exit."""
    try:
        yield
    except BrokenPipeError:  # the output pipe was closed: typer handles it
        raise
    except (TargetUnreachable, TargetUnusable, OSError, ValueError) as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(_ERROR_STATUS) from None


def _choose_checks(patterns: Sequence[str], *, with_scripted: bool) -> list[Check]:
    known = (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS) if with_scripted else BLACK_BOX_CHECKS
    checks = select_checks(known, patterns)
    if not checks:
        raise ValueError(f"no check matches {', '.join(patterns)}; --list shows all checks")
    return checks


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        typer.echo(f"{check.id:<38} {check.clause.id:<6} {check.title}")
    typer.echo(f"{len(checks)} checks")


def _open_target(
    options: TargetOptions, local: LocalServer | None
) -> AbstractContextManager[TargetOptions]:
    if options.url:
        return nullcontext(options)
    if local is None:
        raise ValueError("the URL of a server is required")
    return local.start()


def run_suite(options: TargetOptions, checks: Sequence[Check], output: OutputOptions) -> int:
    """Run the checks, write the report, and return the exit status."""
    console = output.console()
    report = asyncio.run(_run_checks(options, checks, console))
    print_report(console, report, show_all=output.show_all)
    _write_report(report, output)
    if len(report.results) < len(checks):
        return _INTERRUPTED_STATUS
    return _FAILED_STATUS if report.failed else 0


async def _run_checks(
    options: TargetOptions, checks: Sequence[Check], console: Console
) -> VerifyReport:
    target = _make_target(options)
    console.print(f"connecting to {target.endpoint}", highlight=False)
    await discover_target(target)
    console.print(f"{len(checks)} checks of {target.model}", highlight=False)
    results: list[CheckResult] = []
    with show_progress(console, len(checks)) as show:

        def note(check: Check, result: CheckResult | None) -> None:
            show(check, result)
            results.extend([result] if result is not None else [])

        try:
            await run_checks(target, checks, note)
        except asyncio.CancelledError:  # Ctrl-C: report the results so far
            console.print(f"interrupted after {len(results)} of {len(checks)} checks")
    return VerifyReport(
        str(target.endpoint),
        target.model,
        results,
        target.missing_apis,
        target.context_length,
        version("dovetail-verify"),
    )


def _make_target(options: TargetOptions) -> TargetServer:
    return TargetServer(
        Endpoint.parse(options.url.rstrip("/").removesuffix("/v1")),
        options.model or "",
        api_key=options.api_key,
        timeout=options.timeout,
        recording=None if options.record_path is None else FileRecording(options.record_path),
    )


def _write_report(report: VerifyReport, output: OutputOptions) -> None:
    if output.json_file is not None:
        text = json.dumps(report_to_dict(report), indent=2, ensure_ascii=False) + "\n"
        if output.json_file == "-":
            sys.stdout.write(text)
        else:
            Path(output.json_file).write_text(text, "utf-8")
    if output.html_file is not None:
        output.html_file.write_text(render_html(report), "utf-8")
