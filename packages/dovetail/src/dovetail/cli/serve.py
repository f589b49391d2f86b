"""`dovetail serve`: a server, and what to paste to try it."""

import asyncio
import json
import logging
import shlex
import signal
import socket
import sys
from typing import Any

import typer

from dovetail.access.auth import exposure_warning
from dovetail.cli.errors import fail
from dovetail.cli.flags import with_settings
from dovetail.cli.server_runner import (
    ServerFrontend,
    bind_socket,
    build_with_progress,
    emit_warnings,
    load_certificate,
    resolve_port,
    serve_in_process,
)
from dovetail.http.options import HttpOptions, build_http_options
from dovetail.launch.harnesses import HARNESSES
from dovetail.server.process import notify
from dovetail.server.supervisor import SupervisorError, WorkerSupervisor
from dovetail.settings.config import Config
from dovetail.settings.sources import LoadedConfig
from dovetail.telemetry.log import configure_logging
from dovetail.telemetry.metrics import VERSION, Metrics
from dovetail.telemetry.recorders import open_recorders

_log = logging.getLogger(__name__)


@with_settings
def serve(settings: LoadedConfig) -> None:
    """Serve a model to Claude Code, Codex and every client of the three APIs.

    MODEL is a built-in name (smollm2), a GGUF file, a Hugging Face folder or a hub id. Settings
    come from flags, then DOVETAIL_* variables, then dovetail.toml; `dovetail config` shows them.
    """
    config = settings.config
    configure_logging(config.log_format, config.log_level)
    try:
        options = build_http_options(config)
        certificate = load_certificate(config)
        if config.workers > 1 and config.store == "memory":
            raise ValueError("--workers: several need one store of turns, sqlite or redis://")
        if config.workers > 1 and sys.platform != "linux":
            raise ValueError("--workers: only Linux spreads connections over several processes")
        # Before the model is loaded: a port that is taken is told at once.
        place = bind_socket(config.http_host, resolve_port(config))
    except (OSError, OverflowError, ValueError) as error:
        fail("serve", str(error))
    scheme = "http" if certificate is None else "https"
    if config.workers > 1:
        _serve_with_workers(config, options, place, scheme)
        return
    try:
        metrics = Metrics()
        front = ServerFrontend(
            options, certificate, place, metrics, open_recorders(config, metrics)
        )
    except (OSError, ValueError) as error:
        fail("serve", str(error))
    service = build_with_progress(config)
    first = service.entries[0]
    emit_warnings(config, *(warning for one in service.entries for warning in one.warnings))
    emit_warnings(config, *_startup_warnings(config, options))

    def ready() -> None:
        _log_serving(place, scheme, [one.name for one in service.entries], config.workers)
        _print_examples(
            _client_url(place, scheme), first.name, first.context_length, bool(options.keys)
        )
        notify("READY=1")

    serve_in_process(config, front, service, ready)


def _serve_with_workers(
    config: Config, options: HttpOptions, place: socket.socket, scheme: str
) -> None:
    """Several processes on one port. This one keeps them, and holds the port for them."""
    port = place.getsockname()[1]
    place.close()
    try:
        place = bind_socket(config.http_host, port, shared=True)
    except OSError as error:
        fail("serve", str(error))
    emit_warnings(config, *_startup_warnings(config, options))

    def ready(facts: dict[str, Any]) -> None:
        _log_serving(place, scheme, facts["models"], config.workers)
        _print_examples(
            _client_url(place, scheme), facts["name"], facts["window"], bool(options.keys)
        )

    async def run() -> signal.Signals | None:
        crew = WorkerSupervisor(config, port)
        await crew.run(ready)
        return crew.stop_signal

    try:
        stopped_by = asyncio.run(run())
        _log.info("stopped")
    except SupervisorError as error:
        fail("serve", str(error))
    if stopped_by is not None:
        signal.raise_signal(stopped_by)  # whoever waits for us sees how we ended


def _startup_warnings(config: Config, options: HttpOptions) -> tuple[str | None, str | None]:
    """What an operator should know of these settings."""
    return exposure_warning(config.http_host, options.keys), _payload_warning(config)


def _client_url(place: socket.socket, scheme: str) -> str:
    """Where clients on this machine reach it. The port may be a free one."""
    host, port = place.getsockname()[:2]
    return _format_url(scheme, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def _format_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _log_serving(place: socket.socket, scheme: str, models: list[str], workers: int) -> None:
    """In the log: from now on requests are taken."""
    fields = {
        "version": VERSION,
        "address": _format_url(scheme, *place.getsockname()[:2]),
        "models": ",".join(models),
        "workers": workers,
    }
    _log.info("serving", extra={"fields": fields})


def _payload_warning(config: Config) -> str | None:
    """That somebody reads along."""
    if config.trace_file is None or not config.trace_payloads:
        return None
    return (
        f"--trace-payloads: every request and answer is written to {config.trace_file}, with all "
        "that users and models say; it is for debugging, and makes streams slower"
    )


def _print_examples(address: str, name: str, window: int, keyed: bool) -> None:
    """The address, and a line to paste for each API."""
    key = ' -H "x-api-key: $KEY"' if keyed else ""
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
    typer.echo("\n" + "\n".join(_launch_commands(address, window, keyed)) + "\n")
    sys.stdout.flush()


def _launch_commands(address: str, window: int, keyed: bool) -> list[str]:
    """A line for each coding agent that the window has room for."""
    key = 'DOVETAIL_API_KEY="$KEY" ' if keyed else ""  # a flag could be seen in the process list
    fit = [one.name for one in HARNESSES.values() if one.min_context_tokens <= window]
    return [f"{key}dovetail launch {name} --url {address}" for name in fit]
