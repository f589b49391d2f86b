"""The `dovetail` command line: its commands, loaded on demand."""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from dovetail.cli.unknown_flags import HintingCommand, LaunchCommand

#: In the order of the help. Each is a function in the module of the same name.
COMMANDS = (
    *("serve", "launch", "catalog", "verify", "eval", "compare", "config", "chat", "demo"),
    *("export", "inspect", "render", "parse", "tokenize", "models", "watch", "simulate", "usage"),
)
GROUPS = ("engine", "keys", "trace")  # each is the `app` of its module
ALL_COMMANDS = COMMANDS + GROUPS
ALIASES = {"accept": "eval"}  # former names, which stay valid but are not listed
_FUNCTIONS = {"eval": "evaluate"}  # if the command's name is a Python builtin

_HELP = "A server between agent harnesses and inference engines: exact turns for open models."


def build_app(names: Iterable[str] = ALL_COMMANDS) -> typer.Typer:
    """Build the application with the given commands."""
    app = typer.Typer(
        name="dovetail",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_global_options)
    for name in names:
        command = ALIASES.get(name, name)
        module = import_module(f"dovetail.cli.{command}")
        if command in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            function = getattr(module, _FUNCTIONS.get(command, command))
            kind = LaunchCommand if command == "launch" else HintingCommand
            app.command(name, cls=kind, hidden=name in ALIASES)(function)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dovetail {version('dovetail')}")
        raise typer.Exit


def _global_options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Accept the global options."""


def main() -> None:
    """Run the `dovetail` command. Only the requested command is imported, to start quickly."""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    requested = [name for name in (*ALL_COMMANDS, *ALIASES) if name == first]
    build_app(requested if requested or first == "--version" else ALL_COMMANDS)()
