"""`python -m dovetail.cli.worker`: one of several processes that serve one port."""

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
from dovetail.telemetry.log import configure_logging
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.recorders import open_recorders


def main() -> int:
    """Serves until told to stop, by a signal or by the end of the parent."""
    order = receive_spec(WorkerSpec)
    configure_logging(order.config.log_format, order.config.log_level)
    _tag_log_records(order.number)
    exit_with_parent()
    hold_runtime_dir(order.folder)
    try:
        _run_worker(order)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _tag_log_records(number: int) -> None:
    """Has every line of the log say whose it is."""

    def sign(record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), "worker": number}
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(sign)


def _run_worker(order: WorkerSpec) -> None:
    config = order.config
    try:
        metrics = Metrics()
        metrics.count_restarts(order.restarts)
        front = ServerFrontend(
            build_http_options(
                config,
                SharedLimitStore(order.folder / LIMITS_FILE, order.number),
                reloading=order.restarts > 0,
            ),
            load_certificate(config),
            bind_socket(config.http_host, order.port, shared=True),
            metrics,
            open_recorders(config, metrics),
        )
    except (OSError, ValueError) as error:
        fail("serve", str(error))
    service = build_with_progress(config)
    first = service.entries[0]
    if order.number == 0:
        emit_warnings(config, *(warning for one in service.entries for warning in one.warnings))

    def beside(app: App) -> AbstractAsyncContextManager[None]:
        return join_peers(app, order.folder, order.number, config.workers)

    def ready() -> None:
        names = [one.name for one in service.entries]
        report_ready({"name": first.name, "window": first.context_length, "models": names})

    serve_in_process(config, front, service, ready, beside)


if __name__ == "__main__":
    sys.exit(main())
