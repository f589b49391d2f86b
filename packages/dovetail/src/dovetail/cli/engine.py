"""`dovetail engine`: run an engine as a process of its own."""

import typer

from dovetail.engines.scripted.__main__ import main

app = typer.Typer(
    help="Run an engine as a process of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "scripted",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def scripted(context: typer.Context) -> None:
    """Play a script in place of a model, behind vLLM's completions protocol."""
    raise typer.Exit(main(context.args))  # its flags are its own: --help lists them
