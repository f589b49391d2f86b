"""Open the request recorders that the settings enable."""

import logging

from dovetail.settings.config import Config
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.otel import open_telemetry
from dovetail.telemetry.record import RequestRecorder
from dovetail.telemetry.trace.writer import TraceFile, TraceWriter

_log = logging.getLogger(__name__)


def open_recorders(config: Config, metrics: Metrics) -> list[RequestRecorder]:
    """Open the recorders of one process.

    Raises `OSError` if a trace cannot be written, `ValueError` if spans cannot be sent.
    """
    if config.trace_payloads and config.trace_file is None:
        raise ValueError("--trace-payloads requires --trace-file")
    recorders: list[RequestRecorder] = []
    if config.trace_file is not None:
        recorders.append(_open_trace(config, metrics))
    if config.otlp_endpoint is not None:
        recorders.append(open_telemetry(config.otlp_endpoint))
    return recorders


def _open_trace(config: Config, metrics: Metrics) -> TraceWriter:
    assert config.trace_file is not None
    try:
        file = TraceFile(config.trace_file, config.trace_max_bytes, config.trace_keep)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"--trace-file {config.trace_file} cannot be written: {reason}") from error
    fields = {"file": str(file.path), "payloads": config.trace_payloads}
    level = logging.WARNING if config.trace_payloads else logging.INFO
    _log.log(level, "trace_opened", extra={"fields": fields})
    return TraceWriter(
        file,
        metrics.count_trace_dropped,
        payloads=config.trace_payloads,
        block_tokens=config.trace_block_tokens,
    )
