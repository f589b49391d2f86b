"""`dovetail usage`: report the recorded usage of a server."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dovetail.cli.errors import fail
from dovetail.cli.tables import format_name
from dovetail.settings.config import Config
from dovetail.settings.sources import ConfigError, load_config
from dovetail.usage.opening import USAGE_FILE, open_usage_store, usage_file
from dovetail.usage.report import (
    COLUMNS,
    DEFAULT_SINCE,
    GROUPS,
    build_report,
    format_csv,
    parse_query,
)
from dovetail.usage.store import UsageQuery
from dovetail_model import DovetailError

_HEADS = {
    name: name.removesuffix("_tokens").replace("reprefilled", "re-prefilled") for name in COLUMNS
}


def usage(  # noqa: PLR0913 - each is a flag
    by: Annotated[
        str, typer.Option(help=f"Dimensions to group by: {', '.join(GROUPS)}.")
    ] = "tenant,key,model",
    since: Annotated[
        str, typer.Option(help="Age (12h, 30d, 2w) or UTC date of the oldest usage.")
    ] = DEFAULT_SINCE,
    until: Annotated[str, typer.Option(help="Age or UTC date at which the report ends.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the totals.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data folder of the server, which contains the usage.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Storage of the usage: sqlite, or a redis:// URL.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The server's TOML settings file.")] = None,
) -> None:
    """Report tokens, requests, time and cost by tenant, key, model, session and harness.

    The report contains the usage of all processes that share the data folder or the Redis server.
    They can keep running.
    """
    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json cannot be combined")
    try:
        query = parse_query(by, since, until, time.time())
    except ValueError as error:
        raise typer.BadParameter(f"--{error}") from error
    try:
        settings = load_config({"data_dir": data_dir, "store": store}, os.environ, config).config
        report = asyncio.run(_read(settings, query))
    except (ConfigError, DovetailError, OSError, ValueError) as error:
        fail("usage", str(error))
    if as_csv:
        typer.echo(format_csv(report), nl=False)
    elif as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, indent=1))
    else:
        _print_table(report)


async def _read(settings: Config, query: UsageQuery) -> dict[str, Any]:
    """Read the store of a server. A missing one is not created."""
    if settings.store == "memory":
        raise ValueError("--store memory: only the server can report it, at GET /admin/usage")
    if settings.store == "sqlite" and not usage_file(settings).exists():
        raise ValueError(f"no usage in {usage_file(settings).parent}: it has no file {USAGE_FILE}")
    opened = open_usage_store(settings)
    if opened is None:
        raise ValueError("usage is not recorded, or --store is not sqlite or a redis:// URL")
    try:
        return await build_report(opened, query, time.time())
    finally:
        await opened.close()


def _print_table(report: dict[str, Any]) -> None:
    rows, total = report["rows"], report["total"]
    shown = [name for name in COLUMNS if total[name] or name == "requests"]
    table = Table(box=None, pad_edge=False)
    for name in report["by"]:
        table.add_column(name)
    for name in shown:
        table.add_column(_HEADS[name], justify="right")
    for row in rows:
        groups = [format_name(row[name]) for name in report["by"]]
        table.add_row(*groups, *(_format_cell(name, row[name]) for name in shown))
    if len(rows) != 1:
        heads = ["total", *[""] * (len(report["by"]) - 1)] if report["by"] else []
        table.add_row(*heads, *(_format_cell(name, total[name]) for name in shown))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _format_cell(name: str, value: float) -> str:
    if name == "seconds":
        return f"{value:.1f}"
    return f"{value:.4f}" if name == "cost" else str(value)
