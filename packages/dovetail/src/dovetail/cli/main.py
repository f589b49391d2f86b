"""The command line."""

import typer

from dovetail.cli import (
    chat,
    config,
    demo,
    engine,
    inspect,
    models,
    parse,
    render,
    serve,
    tokenize,
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
app.command("config")(config.config)
app.command("chat")(chat.chat)
app.command("demo")(demo.demo)
app.command("inspect")(inspect.inspect)
app.command("render")(render.render)
app.command("parse")(parse.parse)
app.command("tokenize")(tokenize.tokenize)
app.command("models")(models.models)
app.command("watch")(watch.watch)
app.add_typer(engine.app, name="engine")


def main() -> None:
    """The entry point of the `dovetail` command."""
    app()
