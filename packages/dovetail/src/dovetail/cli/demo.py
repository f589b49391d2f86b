"""`dovetail demo`: show an agent session in the terminal."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from dovetail.cli.errors import fail
from dovetail.cli.server_runner import build_with_progress
from dovetail.demo.live import MODEL, run_live_demo
from dovetail.demo.replay import run_demo
from dovetail.settings.config import Config
from dovetail.telemetry.log import configure_logging
from dovetail_model import DovetailError


def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not simulate the generation speed of a model.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Let the embedded model fix a function. Downloads its weights (93 MB)."
        ),
    ] = False,
) -> None:
    """Replay a recorded agent session on a server. Needs no weights, takes ten seconds.

    Shows events as they are emitted, each tool call as soon as it is complete, and for each turn
    whether the next prompt contains it token for token. The web UI shows the same session; in a
    terminal, it stays open until you press Enter. With --live, the embedded model smollm2-agent
    works on files in a scratch folder instead.
    """
    if fast and live:
        fail("demo", "--fast cannot be combined with --live: the model has its own speed")
    configure_logging("logfmt", "error")  # the requests are shown, not logged
    console = Console(highlight=False)

    async def wait() -> None:
        await asyncio.to_thread(console.input, "[dim]Press Enter to close the web UI.[/] ")

    is_interactive = not fast and sys.stdin.isatty() and sys.stdout.isatty()
    end = wait if is_interactive else None
    try:
        if live:
            registry = build_with_progress(Config(model=MODEL, slots=1, store="memory"), "demo")
            passed = asyncio.run(run_live_demo(console, registry, wait=end))
        else:
            passed = asyncio.run(run_demo(console, fast=fast, wait=end))
    except DovetailError as error:
        fail("demo", error.message)
    except (EOFError, KeyboardInterrupt):
        raise typer.Exit from None
    if not passed:
        raise typer.Exit(1)
