"""Report the failure of a command: one line on stderr and an exit status."""

from typing import NoReturn

import typer


def fail(command: str, message: str, status: int = 1) -> NoReturn:
    """Print an error message of a command and exit with a status."""
    typer.echo(f"dovetail {command}: {message}", err=True)
    raise typer.Exit(status)
