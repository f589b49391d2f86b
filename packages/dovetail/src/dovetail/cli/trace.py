"""`dovetail trace`: summarize request traces and convert them to timelines."""

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from dovetail.cli.errors import fail
from dovetail.cli.tables import format_name
from dovetail.cli.trace_html import HtmlOutputOption, write_html
from dovetail.telemetry.trace.mooncake import convert_trace
from dovetail.telemetry.trace.perfetto import build_timeline
from dovetail.telemetry.trace.reader import Trace, TraceError, read_traces
from dovetail.telemetry.trace.sessions import SessionSummary, summarize_sessions

app = typer.Typer(
    help="Analyze the traces that `dovetail serve --trace-file` writes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TraceFilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Trace files, plain or compressed (.gz).")
]
SessionOption = Annotated[
    str | None, typer.Option(help="Include only this session and its subagents.")
]
TenantOption = Annotated[str | None, typer.Option(help="Include only this tenant.")]


OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
]


@app.command("perfetto")
def perfetto(
    files: TraceFilesArgument,
    output: OutputOption = None,
    session: SessionOption = None,
    tenant: TenantOption = None,
) -> None:
    """Write a timeline for ui.perfetto.dev: turns, reasoning, tool calls, waits for tools."""
    timeline = msgspec.json.encode(build_timeline(_read_filtered(files, session, tenant))) + b"\n"
    _write(timeline, output)


@app.command("mooncake")
def mooncake(
    files: TraceFilesArgument,
    output: OutputOption = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per block, a multiple of the trace's --trace-block-tokens (default).",
        ),
    ] = None,
    session: SessionOption = None,
    tenant: TenantOption = None,
) -> None:
    """Write a trace without text in Mooncake's format, for `dovetail simulate` and other tools."""
    try:
        lines = list(convert_trace(_read_filtered(files, session, tenant), block_size))
    except TraceError as error:
        fail("trace", str(error))
    _write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), output)


@app.command("html")
def html(
    files: TraceFilesArgument,
    output: HtmlOutputOption = None,
    session: SessionOption = None,
    tenant: TenantOption = None,
) -> None:
    """Write the view of the web UI as one HTML file: timeline, turns, prefix diagnostics."""
    write_html(_read_filtered(files, session, tenant), session, output)


@app.command("summary")
def summary(
    files: TraceFilesArgument, session: SessionOption = None, tenant: TenantOption = None
) -> None:
    """Print one line per session: requests, tokens, cached tokens, and time spent.

    The column "re-prefilled" counts prompt tokens that were computed again although they could have
    been cached.
    """
    heads = ("requests", "failed", "agents", "calls", "input", "cached", "re-prefilled", "output")
    table = Table("session", box=None, pad_edge=False)
    for head in (*heads, "responding", "reasoning", "tools"):
        table.add_column(head, justify="right")
    for one in summarize_sessions(_read_filtered(files, session, tenant)):
        table.add_row(format_name(one.name), *_format_cells(one))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _format_cells(one: SessionSummary) -> list[str]:
    counts = (one.requests, one.failed, one.agents, one.calls, one.input_tokens)
    cells = [str(count) for count in counts]
    cells += [f"{one.cached_share:.0%}", str(one.reprefilled_tokens), str(one.output_tokens)]
    return cells + [
        f"{seconds:.1f}s"
        for seconds in (one.response_seconds, one.reasoning_seconds, one.tool_wait_seconds)
    ]


def _read_filtered(files: list[Path], session: str | None, tenant: str | None) -> Trace:
    try:
        trace = read_traces(files)
    except TraceError as error:
        fail("trace", str(error))
    if trace.skipped_lines:
        typer.echo(f"dovetail trace: skipped {trace.skipped_lines} unreadable lines", err=True)
    if not trace.lines:
        fail("trace", "the trace files contain no requests")
    selected = trace.select(session, tenant)
    if not selected.lines:
        fail("trace", "no request in the trace files matches --session and --tenant")
    return selected


def _write(content: bytes, output: Path | None) -> None:
    """Write to a file that only the owner can read, or to stdout."""
    if output is None:
        sys.stdout.buffer.write(content)
        return
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        fail("trace", f"cannot write {output}: {error.strerror}")
