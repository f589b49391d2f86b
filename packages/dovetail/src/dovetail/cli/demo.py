"""`dovetail demo`: replay a recorded agent session in the terminal."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from dovetail.demo.session import run_demo


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Without the pauses of a model.")] = False,
) -> None:
    """Play a recorded agent session through the whole pipeline, without weights, in ten seconds.

    Events as they come, each call dispatched when it is complete, and after each turn whether it
    stood in the next prompt token for token.
    """
    if not asyncio.run(run_demo(Console(highlight=False), fast=fast)):
        raise typer.Exit(1)
