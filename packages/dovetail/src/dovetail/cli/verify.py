"""`dovetail verify`: judges a server by what agent harnesses ask of one."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from dovetail.cli.errors import fail
from dovetail.launch.plan import LaunchError
from dovetail.launch.server_process import start_server
from dovetail.net.http_client import Endpoint
from dovetail_model import DovetailError
from dovetail_verify.check import Check, CheckResult
from dovetail_verify.html_report import render_html
from dovetail_verify.report import VerifyReport, report_to_dict
from dovetail_verify.scripted import FileRecording, prepare_scripted_server, render_script
from dovetail_verify.suite import (
    BLACK_BOX_CHECKS,
    SCRIPTED_CHECKS,
    TargetUnusable,
    discover_target,
    run_checks,
    select_checks,
)
from dovetail_verify.target import EngineRecording, TargetServer
from dovetail_verify.terminal_report import print_report, show_progress

_INTERRUPTED_STATUS = 130  # as shells have it for Ctrl-C


def verify(  # noqa: PLR0913 - each is a flag
    url: Annotated[
        str,
        typer.Argument(
            help="The server, such as http://127.0.0.1:8000. Without one: Dovetail itself, with a "
            "scripted model."
        ),
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="The model to ask; by default the first that is listed.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The key that the server asks for.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Checks to run, by id, clause or pattern (messages.stream, CC-4, *.ids.*)."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds of silence after which a check is given up.")
    ] = 120.0,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the report as JSON; - prints it.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report as one HTML file.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show the checks that passed, too.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the checks, and run none.")] = False,
    scripted: Annotated[
        bool,
        typer.Option("--scripted", help="The scripted engine is behind the server: look at both."),
    ] = False,
    engine_record: Annotated[
        Path | None, typer.Option(help="The file that the scripted engine's --record names.")
    ] = None,
    print_script: Annotated[
        str | None,
        typer.Option(metavar="FAMILY", help="Print the script for a family of models, and end."),
    ] = None,
) -> None:
    """Judge any server by what agent harnesses ask of one.

    Every check names its clause, what was sent, what came, and why it matters. The status is 1
    where something failed.
    """
    flags, patterns = _ServerFlags(url, model, api_key, timeout), only or []
    if print_script is not None:
        _print_script(print_script)
        return
    if (scripted or engine_record) and not (scripted and engine_record and url):
        fail(
            "verify", "--scripted needs the address of a server, and --engine-record FILE", status=2
        )
    both = (*BLACK_BOX_CHECKS, *SCRIPTED_CHECKS)
    checks = select_checks(both if scripted or listed or not url else BLACK_BOX_CHECKS, patterns)
    if not checks:
        fail("verify", f"no check is called {', '.join(patterns)}: --list shows them", status=2)
    if listed:
        _print_checks(checks)
        return
    console = Console(stderr=json_file == "-")
    try:
        report = _run_checks(flags, checks, console, engine_record)
        print_report(console, report, show_all=everything)
        _write_report(report, json_file, html_file)
    except (DovetailError, LaunchError, TargetUnusable, OSError, ValueError) as error:
        fail("verify", str(error), status=2)
    if len(report.results) < len(checks):
        raise typer.Exit(_INTERRUPTED_STATUS)
    if report.failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _ServerFlags:
    """What was said of the server."""

    url: str
    model: str | None
    key: str | None
    timeout: float = 120.0


def _run_checks(
    flags: _ServerFlags, checks: Sequence[Check], console: Console, record: Path | None
) -> VerifyReport:
    if not flags.url:
        with _start_scripted_server() as (own, recording):
            return asyncio.run(_run_suite(own, checks, console, recording))
    heard = None if record is None else FileRecording(record)
    return asyncio.run(_run_suite(flags, checks, console, heard))


@contextmanager
def _start_scripted_server() -> Iterator[tuple[_ServerFlags, EngineRecording]]:
    """Dovetail with a scripted model and a key, for as long as it is judged."""
    key = token_urlsafe()
    with TemporaryDirectory(prefix="dovetail-verify-") as folder:
        own, log = prepare_scripted_server(Path(folder)), Path(folder) / "log" / "serve.log"
        settings = Path(folder) / "dovetail.toml"  # in place of the user's own
        settings.touch()
        arguments = (*own.arguments, "--config", str(settings))
        with start_server(arguments, {"DOVETAIL_API_KEY": key}, log) as child:
            yield _ServerFlags(child.address, own.model, key), FileRecording(own.record_path)


async def _run_suite(
    flags: _ServerFlags,
    checks: Sequence[Check],
    console: Console,
    recording: EngineRecording | None,
) -> VerifyReport:
    endpoint = Endpoint.parse(flags.url.rstrip("/").removesuffix("/v1"))
    stage = TargetServer(
        endpoint, flags.model or "", api_key=flags.key, timeout=flags.timeout, recording=recording
    )
    console.print(f"asking {endpoint}", highlight=False)
    await discover_target(stage)
    console.print(f"{len(checks)} checks of {stage.model}", highlight=False)
    findings: list[CheckResult] = []
    with show_progress(console, len(checks)) as show:

        def note(check: Check, finding: CheckResult | None) -> None:
            show(check, finding)
            findings.extend([finding] if finding is not None else [])

        try:
            await run_checks(stage, checks, note)
        except asyncio.CancelledError:  # Ctrl-C: what was found until then is told
            console.print(f"interrupted after {len(findings)} of {len(checks)} checks")
    served = str(endpoint), stage.model
    return VerifyReport(
        *served, findings, stage.missing_apis, stage.context_length, version("dovetail")
    )


def _write_report(report: VerifyReport, json_file: str | None, html_file: Path | None) -> None:
    if json_file is not None:
        text = json.dumps(report_to_dict(report), indent=2, ensure_ascii=False) + "\n"
        if json_file == "-":
            sys.stdout.write(text)
        else:
            Path(json_file).write_text(text, "utf-8")
    if html_file is not None:
        html_file.write_text(render_html(report), "utf-8")


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        typer.echo(f"{check.id:<38} {check.clause.id:<6} {check.title}")
    typer.echo(f"{len(checks)} checks")


def _print_script(family: str) -> None:
    try:
        typer.echo(render_script(family), nl=False)
    except ValueError as error:
        fail("verify", str(error), status=2)
