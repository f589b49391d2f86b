"""The command line."""

import typer

from dovetail.cli import config, inspect, serve

app = typer.Typer(
    name="dovetail",
    help="The joint between agent harnesses and inference engines: exact turns for open models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.command("serve")(serve.serve)
app.command("config")(config.config)
app.command("inspect")(inspect.inspect)


def main() -> None:
    """The entry point of the `dovetail` command."""
    app()
