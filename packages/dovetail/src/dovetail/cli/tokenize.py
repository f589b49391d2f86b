"""`dovetail tokenize`: print the tokens of a text."""

import json
import sys
from typing import Annotated

import typer

from dovetail.cli.flags import find_and_load_model
from dovetail.models.loader import ModelLoadError
from dovetail.models.weights import ModelUnavailableError


def tokenize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A built-in name, a GGUF file, a model folder, or a Hugging Face Hub id.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="Text to tokenize; standard input by default."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Encode the names of control tokens as plain text.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the ids, as JSON.")] = False,
) -> None:
    """Print the tokens of a text.

    Each line has an id, its text, and `control` if it is a control token.
    """
    try:
        tokenizer = find_and_load_model(model).tokenizer
    except (ModelLoadError, ModelUnavailableError) as error:
        typer.echo(f"dovetail tokenize: {error}", err=True)
        raise typer.Exit(1) from error
    input_text = sys.stdin.read() if text is None else text
    ids = tokenizer.encode_plain(input_text, first=True) if plain else tokenizer.encode(input_text)
    if as_json:
        typer.echo(json.dumps(ids))
        return
    for id in ids:
        token_text = repr(tokenizer.bytes_of(id).decode("utf-8", "backslashreplace"))
        typer.echo(f"{id:>8}  {token_text}{'  control' if tokenizer.is_control(id) else ''}")
    typer.echo(f"{len(ids)} tokens", err=True)
