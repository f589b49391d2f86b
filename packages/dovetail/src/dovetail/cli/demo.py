"""`dovetail demo`: replay a recorded agent session in the terminal."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from dovetail.demo.session import run_demo


def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not simulate the generation speed of a model.")
    ] = False,
) -> None:
    """Replay a recorded agent session through the pipeline. Needs no weights, takes ten seconds.

    Shows events as they are emitted, each tool call as soon as it is complete, and for each turn
    whether the next prompt contains it token for token.
    """
    if not asyncio.run(run_demo(Console(highlight=False), fast=fast)):
        raise typer.Exit(1)
