"""The command line."""

from importlib.metadata import version
from typing import Annotated

import typer

from dovetail.cli import (
    accept,
    catalog,
    chat,
    config,
    demo,
    engine,
    export,
    inspect,
    keys,
    launch,
    models,
    parse,
    render,
    serve,
    tokenize,
    trace,
    verify,
    watch,
)

app = typer.Typer(
    name="dovetail",
    help="The joint between agent harnesses and inference engines: exact turns for open models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.command("serve")(serve.serve)
app.command("launch")(launch.launch)
app.command("catalog")(catalog.catalog)
app.command("verify")(verify.verify)
app.command("accept")(accept.accept)
app.command("config")(config.config)
app.command("chat")(chat.chat)
app.command("demo")(demo.demo)
app.command("export")(export.export)
app.command("inspect")(inspect.inspect)
app.command("render")(render.render)
app.command("parse")(parse.parse)
app.command("tokenize")(tokenize.tokenize)
app.command("models")(models.models)
app.command("watch")(watch.watch)
app.add_typer(engine.app, name="engine")
app.add_typer(keys.app, name="keys")
app.add_typer(trace.app, name="trace")


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dovetail {version('dovetail')}")
        raise typer.Exit


@app.callback()
def _any(
    told: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_tell_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Flags of the command as such."""


def main() -> None:
    """The entry point of the `dovetail` command."""
    app()
