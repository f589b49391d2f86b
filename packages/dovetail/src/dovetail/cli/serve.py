"""`dovetail serve`: run a server and print example requests for it."""

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
from dovetail.access.key_file import writable_key_file_warning
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
from dovetail.settings.installation import default_data_dir
from dovetail.settings.sources import LoadedConfig
from dovetail.storage.database_file import loose_permissions_warning
from dovetail.storage.faults import StoreError
from dovetail.telemetry.log import configure_logging
from dovetail.telemetry.metrics import VERSION, Metrics
from dovetail.telemetry.recorders import open_recorders
from dovetail.usage.opening import open_usage

_log = logging.getLogger(__name__)


@with_settings
def serve(settings: LoadedConfig) -> None:
    """Serve a model over the Anthropic and OpenAI APIs.

    The APIs are Anthropic Messages, OpenAI Responses and OpenAI Chat Completions.
    MODEL is a built-in name (smollm2), a GGUF file, a model folder or a Hugging Face Hub id. Flags
    override DOVETAIL_* environment variables, which override the settings file (dovetail.toml in
    the working directory by default); `dovetail config` prints the result.
    """
    config = settings.config
    configure_logging(config.log_format, config.log_level)
    try:
        options = build_http_options(config)
        certificate = load_certificate(config)
        if config.workers > 1 and config.store == "memory":
            raise ValueError("--workers > 1 requires --store sqlite or a redis:// URL, got memory")
        if config.workers > 1 and sys.platform != "linux":
            raise ValueError(f"--workers > 1 is only supported on Linux, not on {sys.platform}")
        # Before the model is loaded, to report a port in use at once.
        listener = bind_socket(config.http_host, resolve_port(config))
    except (OSError, OverflowError, ValueError) as error:
        fail("serve", str(error))
    scheme = "http" if certificate is None else "https"
    if config.workers > 1:
        _serve_with_workers(config, options, listener, scheme)
        return
    try:
        metrics = Metrics()
        frontend = ServerFrontend(
            options,
            certificate,
            listener,
            metrics,
            open_recorders(config, metrics),
            open_usage(config),
        )
    except (OSError, ValueError, StoreError) as error:
        fail("serve", str(error))
    service = build_with_progress(config)
    first = service.entries[0]
    emit_warnings(config, *(warning for one in service.entries for warning in one.warnings))
    emit_warnings(config, *_startup_warnings(config, options))

    def ready() -> None:
        _log_started(listener, scheme, [one.name for one in service.entries], config.workers)
        _print_examples(
            _client_url(listener, scheme), first.name, first.context_length, bool(options.keys)
        )
        notify("READY=1")

    serve_in_process(config, frontend, service, ready)


def _serve_with_workers(
    config: Config, options: HttpOptions, listener: socket.socket, scheme: str
) -> None:
    """Serve one port with several worker processes. This process supervises them."""
    port = listener.getsockname()[1]
    listener.close()
    try:
        listener = bind_socket(config.http_host, port, shared=True)
    except OSError as error:
        fail("serve", str(error))
    emit_warnings(config, *_startup_warnings(config, options))

    def ready(facts: dict[str, Any]) -> None:
        _log_started(listener, scheme, facts["models"], config.workers)
        _print_examples(
            _client_url(listener, scheme), facts["name"], facts["window"], bool(options.keys)
        )

    async def run() -> signal.Signals | None:
        supervisor = WorkerSupervisor(config, port)
        await supervisor.run(ready)
        return supervisor.stop_signal

    try:
        stopped_by = asyncio.run(run())
        _log.info("server_stopped")
    except SupervisorError as error:
        fail("serve", str(error))
    if stopped_by is not None:
        signal.raise_signal(stopped_by)  # exit by the same signal, for the parent to see


def _startup_warnings(config: Config, options: HttpOptions) -> tuple[str | None, ...]:
    """Return warnings about risky settings."""
    return (
        exposure_warning(config.http_host, options.keys),
        _payload_warning(config),
        loose_permissions_warning(config.data_dir or default_data_dir()),
        writable_key_file_warning(config.api_key_file),
    )


def _client_url(listener: socket.socket, scheme: str) -> str:
    """Return the URL for clients on this machine, with the actual port if 0 was configured."""
    host, port = listener.getsockname()[:2]
    return _format_url(scheme, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def _format_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _log_started(listener: socket.socket, scheme: str, models: list[str], workers: int) -> None:
    """Log that the server accepts requests."""
    fields = {
        "version": VERSION,
        "address": _format_url(scheme, *listener.getsockname()[:2]),
        "models": ",".join(models),
        "workers": workers,
    }
    _log.info("server_started", extra={"fields": fields})


def _payload_warning(config: Config) -> str | None:
    """Return a warning if payloads are written to the trace."""
    if config.trace_file is None or not config.trace_payloads:
        return None
    return (
        f"--trace-payloads writes every request and response to {config.trace_file}, including all "
        "text of users and models; it is meant for debugging and slows down streaming"
    )


def _print_examples(address: str, name: str, window: int, needs_key: bool) -> None:
    """Print the address and an example command for each API."""
    key = ' -H "x-api-key: $KEY"' if needs_key else ""
    chat_body = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    bodies = {
        "/v1/messages": {**chat_body, "max_tokens": 100},
        "/v1/chat/completions": chat_body,
        "/v1/responses": {"model": name, "input": "What is the capital of France?"},
    }
    typer.echo(f"serving {name} at {address}\n")
    for path, body in bodies.items():
        typer.echo(
            f"curl -s {address}{path}{key} -H 'content-type: application/json' "
            f"-d {shlex.quote(json.dumps(body))}"
        )
    commands = _launch_commands(address, window, needs_key)
    typer.echo("\n".join(["", *commands, ""] if commands else [""]))
    sys.stdout.flush()


def _launch_commands(address: str, window: int, needs_key: bool) -> list[str]:
    """Return a command for each coding agent whose prompt fits into the context window."""
    key = (
        'DOVETAIL_API_KEY="$KEY" ' if needs_key else ""
    )  # a flag would be visible in the process list
    fit = [one.name for one in HARNESSES.values() if one.min_context_tokens <= window]
    return [f"{key}dovetail launch {name} --url {address}" for name in fit]
