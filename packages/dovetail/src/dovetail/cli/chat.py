"""`dovetail chat`: chat with a model in the terminal, through the same pipeline as any client."""

import asyncio
import secrets

import typer
from rich.console import Console

from dovetail.cli.flags import with_settings
from dovetail.pipeline.execution import run_request
from dovetail.pipeline.registry import ModelEntry
from dovetail.pipeline.sinks import CallbackSink
from dovetail.server.build import SETUP_ERRORS, build_service
from dovetail.settings.sources import LoadedConfig
from dovetail_model import (
    Event,
    Failure,
    Identity,
    ReasoningDelta,
    Request,
    TextBlock,
    TextDelta,
    Turn,
    Usage,
)

_out = Console(highlight=False, soft_wrap=True)


@with_settings
def chat(settings: LoadedConfig) -> None:
    """Chat with a model in the terminal.

    Reasoning is shown dimmed. An empty line or Ctrl-D ends the chat.
    """
    try:
        service = build_service(settings.config)
        asyncio.run(_run_chat(service.entries[0]))
    except SETUP_ERRORS as error:
        typer.echo(f"dovetail chat: {error}", err=True)
        raise typer.Exit(1) from error


async def _run_chat(entry: ModelEntry) -> None:
    await entry.engine.start()
    session = secrets.token_hex(8)
    turns: tuple[Turn, ...] = ()
    try:
        while text := await _read_input():
            turns = (*turns, Turn("user", (TextBlock(text),)))
            request = Request(entry.name, turns, identity=Identity(session=session))
            turns = (*turns, await _stream_response(entry, request))
    finally:
        await entry.engine.stop()
        await entry.close()


async def _read_input() -> str:
    try:
        return (await asyncio.to_thread(_out.input, "[bold]> [/]")).strip()
    except EOFError:
        return ""


async def _stream_response(entry: ModelEntry, request: Request) -> Turn:
    sink = CallbackSink(_print_event)
    await run_request(entry, request, lambda: f"call_{secrets.token_hex(12)}", sink)
    message = sink.message()
    usage = message.usage
    _out.print(
        f"\n[dim]{usage.input_tokens} input tokens ({usage.cached_tokens} cached), "
        f"{usage.output_tokens} output tokens[/]"
    )
    return Turn("assistant", message.blocks)


def _print_event(event: Event) -> None:
    match event:
        case TextDelta(text=text):
            _out.print(text, end="", markup=False)
        case ReasoningDelta(text=text):
            _out.print(text, end="", style="dim", markup=False)
        case Failure(message=message):
            _out.print(f"\n{message}", style="red", markup=False)
        case Usage():
            pass
