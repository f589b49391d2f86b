"""`dovetail render`: print the exact prompt of a request and the origin of its parts."""

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dovetail.cli.flags import find_and_load_model
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, ModelLoadError
from dovetail.models.weights import ModelUnavailableError
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.server.build import LEDGER_FILE, open_keyring, open_ledger
from dovetail.settings.config import Config
from dovetail_model import DovetailError
from dovetail_protocols import CHAT, MESSAGES, RESPONSES


class ApiChoice(StrEnum):
    messages = "messages"
    responses = "responses"
    chat = "chat"


_CODECS = {ApiChoice.messages: MESSAGES, ApiChoice.responses: RESPONSES, ApiChoice.chat: CHAT}


def render(  # noqa: PLR0913 - each is a flag
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A built-in name, a GGUF file, a model folder, or a Hugging Face Hub id.",
        ),
    ],
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="File with the request body, as JSON.")
    ],
    api: Annotated[ApiChoice, typer.Option(help="API of the request.")] = ApiChoice.messages,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="Tool call parser; by default detected from the model.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="Reasoning parser; by default detected from the model.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data folder of a server, to use its recorded turns.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print the token ids, too.")] = False,
) -> None:
    """Print the prompt of a request, with control tokens.

    Marks the tokens that the ledger provided. With --data-dir, turns that a server recorded there
    are reused as the server would do.
    """
    try:
        loaded = find_and_load_model(
            model, tool_parser=tool_call_parser, reasoning_parser=reasoning_parser
        )
        prepared = asyncio.run(_prepare(loaded, request.read_bytes(), api, data_dir))
    except (ModelLoadError, ModelUnavailableError, DovetailError, OSError) as error:
        typer.echo(f"dovetail render: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(_prompt_to_json(loaded, prepared), ensure_ascii=False))
        return
    _print_prompt(loaded, prepared, ids)


async def _prepare(
    model: Model, body: bytes, api: ApiChoice, data_dir: Path | None
) -> PreparedRequest:
    if data_dir is None:
        ledger, keyring = Ledger(MemoryLedgerStore()), Keyring([bytes(32)])
    else:
        if not (data_dir / LEDGER_FILE).is_file():
            raise FileNotFoundError(
                "--data-dir must be the data directory of a server: "
                f"{data_dir} has no {LEDGER_FILE}"
            )
        config = Config(data_dir=data_dir)
        ledger, keyring = open_ledger(config, data_dir), open_keyring(config, data_dir)
    preparer = ChatPreparer(model, ledger, keyring)
    try:
        return await preparer.prepare(_CODECS[api].decode(body, {}))
    finally:
        await preparer.close()


def _prompt_to_json(model: Model, prepared: PreparedRequest) -> dict[str, object]:
    prompt = prepared.prompt
    return {
        "text": model.tokenizer.decode(prompt.ids),
        "ids": prompt.ids.tolist(),
        "how": prompt.origin,
        "reused_tokens": prompt.reused_tokens,
        "exact_turns": sorted(prompt.exact_turns | prompt.unchanged_turns),
        "written_turns": sorted(prompt.rewritten_turns),
        "thought_open": prompt.in_reasoning,
        "notes": list(prompt.notes),
    }


def _print_prompt(model: Model, prepared: PreparedRequest, ids: bool) -> None:
    """Print the text: ledger tokens are underlined, control tokens are bold."""
    prompt, tokenizer = prepared.prompt, model.tokenizer
    text = Text()
    for part, style in (
        (prompt.ids[: prompt.reused_tokens], "underline"),
        (prompt.ids[prompt.reused_tokens :], ""),
    ):
        start = 0
        for at, id in enumerate(part):
            if tokenizer.is_control(id):
                text.append(tokenizer.decode(part[start:at]), style or None)
                text.append(tokenizer.decode([id]), f"bold cyan {style}".strip())
                start = at + 1
        text.append(tokenizer.decode(part[start:]), style or None)
    console = Console(highlight=False, soft_wrap=True)
    console.print(text)
    if ids:
        console.print(" ".join(map(str, prompt.ids)))
    summary = f"{len(prompt.ids)} tokens, {prompt.reused_tokens} of them from the ledger "
    summary += f"({prompt.origin})"
    if prompt.in_reasoning:
        summary += "; ends inside a reasoning span"
    typer.echo(f"\n{summary}", err=True)
    for note in prompt.notes:
        typer.echo(f"note: {note}", err=True)
