"""The command line."""

import typer

from dovetail.cli import inspect

app = typer.Typer(
    name="dovetail",
    help="The joint between agent harnesses and inference engines: exact turns for open models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _commands() -> None:
    """Keeps commands named even while there is only one."""


app.command("inspect")(inspect.inspect)


def main() -> None:
    """The entry point of the `dovetail` command."""
    app()
