"""Build and run one server in this process."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import uvloop
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dovetail.cli.errors import fail
from dovetail.http.app import App
from dovetail.http.memory import request_memory
from dovetail.http.options import HttpOptions
from dovetail.models.weights import DEFAULT_MODEL
from dovetail.net.listener import freeze_gc
from dovetail.net.tls import TlsCertificate
from dovetail.pipeline.registry import ModelRegistry
from dovetail.server.build import SETUP_ERRORS, build_service
from dovetail.server.http_server import create_server, run_server, wait_until_started
from dovetail.server.process import notify
from dovetail.server.supervisor import reload_on_change
from dovetail.settings.config import Config
from dovetail.storage.redis_url import REDIS_SCHEMES
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import RequestRecorder
from dovetail.usage.writer import UsageWriter

_err = Console(stderr=True)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerFrontend:
    """The parts of a server that exist before any model is loaded."""

    options: HttpOptions
    certificate: TlsCertificate | None
    listener: socket.socket
    metrics: Metrics
    recorders: list[RequestRecorder]
    usage: UsageWriter | None = None


def serve_in_process(
    config: Config,
    frontend: ServerFrontend,
    service: ModelRegistry,
    on_ready: Callable[[], None],
    lifespan: Callable[[App], AbstractAsyncContextManager[None]] = lambda app: nullcontext(),
) -> None:
    """Serve until stopped. `on_ready` is called once requests are accepted.

    `lifespan` is entered for as long as the application is served.
    """
    request_memory.max_bytes = config.max_held_bytes
    app = App(service, frontend.options, frontend.metrics, frontend.recorders, frontend.usage)
    app.draining.on_start(lambda: notify("STOPPING=1"))
    server = create_server(
        app,
        config.http_host,
        frontend.listener.getsockname()[1],
        certificate=frontend.certificate,
        drain=app.draining,
        max_message_bytes=config.max_body_bytes if frontend.options.websockets else None,
        metrics=app.metrics,
        client_addresses=frontend.options.client_addresses,
        websocket_options=frontend.options.websocket_options,
    )

    async def run() -> None:
        async with (
            reload_on_change(frontend.options.keys, frontend.certificate),
            lifespan(app),
            _join_frontends(app, config),
        ):
            task = asyncio.create_task(run_server(server, [frontend.listener]))
            if await wait_until_started(server, task):
                freeze_gc()
                on_ready()
            await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    if not server.started:
        fail(
            "serve",
            app.startup_error or "the server could not start; see the error above",
        )


def _join_frontends(app: App, config: Config) -> AbstractAsyncContextManager[None]:
    """Connect the application to the other frontends that share its Redis, if any."""
    if not config.store.startswith(REDIS_SCHEMES):
        return nullcontext()
    from dovetail.server.redis_peers import join_redis_peers

    return join_redis_peers(app, config.store)


def resolve_port(config: Config) -> int:
    """Return the port to listen on. Remote engines usually use 8000 themselves."""
    if config.http_port is not None:
        return config.http_port
    configs = [config, *(replace(config, models=(), **table) for table in config.models)]
    return 8001 if any(one.has_remote_url for one in configs) else 8000


def bind_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a listening socket. Only processes that also pass `shared` can use the same port."""
    listener: socket.socket | None = None
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        family, kind, number, _, address = addresses[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address[0], port, *address[2:]))
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = f"{reason}; set another port with --http-port"
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from error
    return listener


def load_certificate(config: Config) -> TlsCertificate | None:
    """Load the TLS certificate, if HTTPS is configured."""
    if config.tls_cert_path is not None:
        return TlsCertificate(config.tls_cert_path, config.tls_key_path)
    if config.tls_key_path is not None:
        raise ValueError("--tls-key-path requires --tls-cert-path")
    return None


def emit_warnings(config: Config, *warnings: str | None) -> None:
    """Print or log warnings for the operator before the first request."""
    for warning in filter(None, warnings):
        if config.log_format == "json" or not _err.is_terminal:
            _log.warning("warning_emitted", extra={"fields": {"text": warning}})
        else:
            _err.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def build_with_progress(config: Config, command: str = "serve") -> ModelRegistry:
    """Build the model registry, with a progress bar for downloads in a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    quiet = not _err.is_terminal
    with Progress(*columns, console=_err, transient=True, disable=quiet) as progress:
        title = f"downloading {config.model or DEFAULT_MODEL}"
        task = progress.add_task(title, total=None, visible=False)

        def update_progress(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        try:
            return build_service(config, update_progress)
        except SETUP_ERRORS as error:
            progress.stop()
            fail(command, str(error))
