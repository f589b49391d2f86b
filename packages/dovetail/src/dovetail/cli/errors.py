"""How a command tells that it cannot do what was asked: in one line, and by its status."""

from typing import NoReturn

import typer


def fail(command: str, message: str, status: int = 1) -> NoReturn:
    typer.echo(f"dovetail {command}: {message}", err=True)
    raise typer.Exit(status)
