"""`dovetail serve`: a server, and what to paste to try it."""

import json
import logging
import sys
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dovetail.catalog import CatalogError
from dovetail.cli.settings import with_settings
from dovetail.config import Config
from dovetail.config_sources import Settings
from dovetail.engines.registry import EngineSetupError
from dovetail.http.server import is_open_to_others, run
from dovetail.service import Service
from dovetail.setup import build
from dovetail_model import DovetailError

_err = Console(stderr=True)


@with_settings
def serve(settings: Settings) -> None:
    """Serve a model to Claude Code, Codex and every client of the three APIs.

    MODEL is a built-in name (smollm2), a GGUF file, a Hugging Face folder or a hub id. Settings
    come from flags, then DOVETAIL_* variables, then dovetail.toml; `dovetail config` shows them.
    """
    config = settings.config
    logging.basicConfig(level=config.log_level.upper(), format="%(message)s", stream=sys.stderr)
    service = _build(config)
    if is_open_to_others(config.http_host) and not (config.api_key or config.api_key_file):
        _err.print(
            f"warning: {config.http_host} is reachable by others and there is no --api-key",
            style="yellow",
        )
    try:
        run(service, config, ready=lambda address: _greet(address, service))
    except (DovetailError, OSError) as error:
        _fail(str(error))


def _build(config: Config) -> Service:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=_err, transient=True) as progress:
        task = progress.add_task(f"fetching {config.model}", total=None, visible=False)

        def tell(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        try:
            return build(config, tell)
        except (CatalogError, EngineSetupError, DovetailError, ValueError, OSError) as error:
            progress.stop()
            _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"dovetail serve: {message}", err=True)
    raise typer.Exit(1)


def _greet(address: str, service: Service) -> None:
    """The address, and a line to paste for each API."""
    name = service.served[0].name
    ask = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    bodies = {
        "/v1/messages": {**ask, "max_tokens": 100},
        "/v1/chat/completions": ask,
        "/v1/responses": {"model": name, "input": "What is the capital of France?"},
    }
    typer.echo(f"serving {name} at {address}\n")
    for path, body in bodies.items():
        typer.echo(
            f"curl -s {address}{path} -H 'content-type: application/json' -d '{json.dumps(body)}'"
        )
    typer.echo("")
    sys.stdout.flush()
