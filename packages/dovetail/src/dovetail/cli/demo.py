"""`dovetail demo`: replay a recorded agent session in the terminal."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from dovetail.demo.replay import run_demo
from dovetail.telemetry.log import configure_logging


def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not simulate the generation speed of a model.")
    ] = False,
) -> None:
    """Replay a recorded agent session on a server. Needs no weights, takes ten seconds.

    Shows events as they are emitted, each tool call as soon as it is complete, and for each turn
    whether the next prompt contains it token for token. The web UI shows the same session; in a
    terminal, it stays open until you press Enter.
    """
    configure_logging("logfmt", "error")  # the requests are shown, not logged
    console = Console(highlight=False)

    async def wait() -> None:
        await asyncio.to_thread(console.input, "[dim]Press Enter to close the web UI.[/] ")

    is_interactive = not fast and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        exact = asyncio.run(run_demo(console, fast=fast, wait=wait if is_interactive else None))
    except (EOFError, KeyboardInterrupt):
        raise typer.Exit from None
    if not exact:
        raise typer.Exit(1)
