"""`dovetail engine`: run an engine in a separate process."""

import typer

from dovetail.engines.scripted.__main__ import main

app = typer.Typer(
    help="Run an engine in a separate process.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "scripted",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def scripted(context: typer.Context) -> None:
    """Serve a script instead of a model, with the protocol of vLLM's completions API."""
    raise typer.Exit(main(context.args))  # the engine parses its own flags; --help lists them
