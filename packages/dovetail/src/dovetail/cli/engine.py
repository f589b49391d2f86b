"""`dovetail engine`: run an engine in a separate process."""

import typer

from dovetail.engines.scripted.__main__ import main
from dovetail.engines.vllm.listen import main as serve_vllm

app = typer.Typer(
    help="Run an engine in a separate process.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "vllm",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def vllm(context: typer.Context) -> None:
    """Run vLLM for Dovetail servers on other machines, which connect with --engine-url."""
    raise typer.Exit(serve_vllm(context.args))  # it parses its own flags; --help lists them


@app.command(
    "scripted",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def scripted(context: typer.Context) -> None:
    """Serve a script instead of a model, with the protocol of vLLM's completions API."""
    raise typer.Exit(main(context.args))  # the engine parses its own flags; --help lists them
