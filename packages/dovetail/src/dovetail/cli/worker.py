"""`python -m dovetail.cli.worker`: one worker process of `dovetail serve --workers N`."""

import logging
import sys
from contextlib import AbstractAsyncContextManager

import typer

from dovetail.access.shared_limits import SharedLimitStore
from dovetail.cli.errors import fail
from dovetail.cli.server_runner import (
    ServerFrontend,
    bind_socket,
    build_with_progress,
    emit_warnings,
    load_certificate,
    serve_in_process,
)
from dovetail.http.app import App
from dovetail.http.options import build_http_options
from dovetail.server.peer_responses import join_peers
from dovetail.server.process import (
    LIMITS_FILE,
    WorkerSpec,
    exit_with_parent,
    hold_runtime_dir,
    receive_spec,
    report_ready,
)
from dovetail.storage.faults import StoreError
from dovetail.telemetry.log import configure_logging
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.recorders import open_recorders
from dovetail.usage.opening import open_usage


def main() -> int:
    """Serve until stopped by a signal or by the exit of the supervisor."""
    spec = receive_spec(WorkerSpec)
    configure_logging(spec.config.log_format, spec.config.log_level)
    _tag_log_records(spec.number)
    exit_with_parent()
    hold_runtime_dir(spec.folder)
    try:
        _run_worker(spec)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _tag_log_records(number: int) -> None:
    """Add the worker's number to every log record."""

    def add_worker(record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), "worker": number}
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(add_worker)


def _run_worker(spec: WorkerSpec) -> None:
    config = spec.config
    try:
        metrics = Metrics()
        metrics.count_restarts(spec.restarts)
        frontend = ServerFrontend(
            build_http_options(
                config,
                SharedLimitStore(spec.folder / LIMITS_FILE, spec.number),
                reloading=spec.restarts > 0,
            ),
            load_certificate(config),
            bind_socket(config.http_host, spec.port, shared=True),
            metrics,
            open_recorders(config, metrics),
            open_usage(config),
        )
    except (OSError, ValueError, StoreError) as error:
        fail("serve", str(error))
    service = build_with_progress(config)
    first = service.entries[0]
    if spec.number == 0:
        emit_warnings(config, *(warning for one in service.entries for warning in one.warnings))

    def peers_lifespan(app: App) -> AbstractAsyncContextManager[None]:
        return join_peers(app, spec.folder, spec.number, config.workers)

    def ready() -> None:
        names = [one.name for one in service.entries]
        report_ready({"name": first.name, "window": first.context_length, "models": names})

    serve_in_process(config, frontend, service, ready, peers_lifespan)


if __name__ == "__main__":
    sys.exit(main())
