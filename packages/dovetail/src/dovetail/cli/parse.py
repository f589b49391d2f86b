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
        Path | None, typer.Argument(help="The model's output; standard input if not given.")
    ] = None,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="A tool parser's name, or a model id to find it by.")
    ] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="A reasoning parser's name.")] = None,
    in_reasoning: Annotated[
        bool | None, typer.Option(help="Whether the prompt ended inside an open thought.")
    ] = None,
    chunk: Annotated[
        int, typer.Option(min=0, help="Characters a piece; 0 feeds the whole at once.")
    ] = 0,
    events: Annotated[
        bool, typer.Option("--events", help="Print the events as they come.")
    ] = False,
) -> None:
    """Read a model's raw output and print what it becomes: reasoning, text and calls, in order.

    One JSON object a line. With --events the stream itself, as a client would get it.
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
