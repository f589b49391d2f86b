"""`dovetail serve`: a server, and what to paste to try it."""

import asyncio
import json
import shlex
import socket
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
from dovetail.http.server import serve as run_server
from dovetail.http.server import server, until_started
from dovetail.launch.registry import HARNESSES
from dovetail.log import configure
from dovetail.service import Service
from dovetail.settling import settle
from dovetail.setup import DEFAULT_MODEL, build
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
        if config.tls_key_path is not None and config.tls_cert_path is None:
            raise ValueError("--tls-key-path is of use only beside --tls-cert-path")
        # Before the model is loaded: a port that is taken is told at once.
        place = _bind(config.http_host, _port(config))
    except (OSError, OverflowError, ValueError) as error:
        _fail(str(error))
    service = _build(config)
    _warn(service, exposure(config.http_host, options.keys))
    tls = {"tls_cert": config.tls_cert_path, "tls_key": config.tls_key_path}
    serving = server(App(service, options), config.http_host, place.getsockname()[1], **tls)
    try:
        serving.config.load()
    except OSError as error:
        _fail(f"the certificate {config.tls_cert_path} and its key cannot be used: {error}")
    address = _address(place, "https" if serving.config.is_ssl else "http")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(serving, place, lambda: _greet(address, service, bool(options.keys))))
    if not serving.started:
        _fail("the server could not be started; what went wrong is told above")


def _port(config: Config) -> int:
    """Remote engines mostly listen on 8000 themselves."""
    if config.http_port is not None:
        return config.http_port
    return 8001 if config.engine_url or any(m.get("engine_url") for m in config.models) else 8000


def _bind(host: str, port: int) -> socket.socket:
    """A place to listen, where nobody listens yet."""
    place: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        family, kind, number, _, address = found[0]
        place = socket.socket(family, kind, number)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((address[0], port, *address[2:]))
    except (OSError, OverflowError) as error:
        if place is not None:
            place.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OSError(f"cannot listen on {host}, port {port}: {reason}") from error
    return place


def _address(place: socket.socket, scheme: str) -> str:
    """Where clients on this machine reach it. The port may be a free one."""
    host, port = place.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def _run(serving: uvicorn.Server, place: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until told to stop. Says when it is ready."""
    task = asyncio.create_task(run_server(serving, [place]))
    if await until_started(serving, task):
        settle()
        ready()
    await task


def _warn(service: Service, exposed: str | None) -> None:
    """What an operator should know before the first request."""
    told = [warning for one in service.served for warning in one.warnings]
    for warning in [*told, *([exposed] if exposed else [])]:
        _err.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def _build(config: Config) -> Service:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    quiet = not _err.is_terminal
    with Progress(*columns, console=_err, transient=True, disable=quiet) as progress:
        what = f"fetching {config.model or DEFAULT_MODEL}"
        task = progress.add_task(what, total=None, visible=False)

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


def _greet(address: str, service: Service, keyed: bool) -> None:
    """The address, and a line to paste for each API."""
    key = ' -H "x-api-key: $KEY"' if keyed else ""
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
            f"curl -s {address}{path}{key} -H 'content-type: application/json' "
            f"-d {shlex.quote(json.dumps(body))}"
        )
    typer.echo("\n" + "\n".join(_agents(address, service.served[0].context_length, keyed)) + "\n")
    sys.stdout.flush()


def _agents(address: str, window: int, keyed: bool) -> list[str]:
    """A line for each coding agent that the window has room for."""
    key = 'DOVETAIL_API_KEY="$KEY" ' if keyed else ""  # a flag could be seen in the process list
    fit = [one.name for one in HARNESSES.values() if one.least_window <= window]
    return [f"{key}dovetail launch {name} --url {address}" for name in fit]
