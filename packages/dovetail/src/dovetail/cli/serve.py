"""`dovetail serve`: a server, and what to paste to try it."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import NoReturn

import typer
import uvicorn
import uvloop
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dovetail.catalog import CatalogError
from dovetail.cli.settings import with_settings
from dovetail.config import Config
from dovetail.config_sources import Settings
from dovetail.engines.registry import EngineSetupError
from dovetail.http.app import App
from dovetail.http.auth import exposure
from dovetail.http.options import http_options
from dovetail.http.server import server
from dovetail.log import configure
from dovetail.service import Service
from dovetail.setup import build
from dovetail.weights import WeightsError
from dovetail_model import DovetailError

_err = Console(stderr=True)


@with_settings
def serve(settings: Settings) -> None:
    """Serve a model to Claude Code, Codex and every client of the three APIs.

    MODEL is a built-in name (smollm2), a GGUF file, a Hugging Face folder or a hub id. Settings
    come from flags, then DOVETAIL_* variables, then dovetail.toml; `dovetail config` shows them.
    """
    config = settings.config
    configure(level=config.log_level)
    try:
        options = http_options(config)
    except (OSError, ValueError) as error:
        _fail(str(error))
    service = _build(config)
    warning = exposure(config.http_host, options.keys)
    if warning:
        _err.print(f"warning: {warning}", style="yellow")
    serving = server(
        App(service, options),
        config.http_host,
        config.http_port,
        tls_cert=config.tls_cert_path,
        tls_key=config.tls_key_path,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(serving, lambda address: _greet(address, service)))
    if not serving.started:
        _fail("the server could not be started; what went wrong is told above")


async def _run(serving: uvicorn.Server, ready: Callable[[str], None]) -> None:
    """Serves until told to stop. Says the address once it is known: the port may be a free one."""
    task = asyncio.create_task(serving.serve())
    while not serving.started and not task.done():
        await asyncio.wait({task}, timeout=0.05)
    if serving.started:
        host, port = serving.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if serving.config.is_ssl else "http"
        ready(f"{scheme}://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}")
    await task


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
        except (
            CatalogError,
            EngineSetupError,
            WeightsError,
            DovetailError,
            ValueError,
            OSError,
        ) as error:
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
