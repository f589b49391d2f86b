"""`dovetail parse`: parse a model's raw output."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dovetail_model import Event, fold
from dovetail_parsers import Parser, resolve_family


def parse(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File with the raw output; standard input by default."),
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="Tool call parser, or a model id to select it by.")
    ] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="Reasoning parser.")] = None,
    in_reasoning: Annotated[
        bool | None, typer.Option(help="Whether the prompt ended inside a reasoning span.")
    ] = None,
    chunk: Annotated[
        int, typer.Option(min=0, help="Characters per chunk; 0 feeds all text at once.")
    ] = 0,
    events: Annotated[
        bool, typer.Option("--events", help="Print the streaming events instead.")
    ] = False,
) -> None:
    """Parse raw model output into reasoning, text and tool calls.

    Prints one JSON object per line, in the order of the output: a block, or with --events an event
    as it is streamed to clients.
    """
    try:
        text = file.read_text("utf-8") if file is not None else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        typer.echo(f"dovetail parse: {file or 'standard input'}: {error}", err=True)
        raise typer.Exit(1) from error
    tool, reasoning = _resolve_parsers(tool_call_parser, reasoning_parser)
    try:
        parser = Parser(tool, reasoning, in_reasoning=in_reasoning)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    parsed: list[Event] = []
    size = chunk or len(text) or 1
    for start in range(0, len(text), size):
        parsed += parser.feed(text[start : start + size])
    parsed += parser.finish()
    message = fold(parsed)
    for item in parsed if events else (*message.blocks, *message.diagnostics):
        typer.echo(msgspec.json.encode(item))


def _resolve_parsers(tool: str | None, reasoning: str | None) -> tuple[str | None, str | None]:
    family = resolve_family(tool) if tool else None
    if family is None or reasoning is not None:
        return tool, None if reasoning == "none" else reasoning
    return family.tool_parser, family.reasoning_parser
