"""OpenTelemetry export. The SDK is an optional extra that is imported only if enabled."""

from urllib.parse import urlsplit

from dovetail.settings.installation import install_command
from dovetail.telemetry.record import RequestRecorder

_TRACES_PATH = "/v1/traces"


class TelemetryError(ValueError):
    """Spans cannot be sent. The message names the cause."""


def open_telemetry(endpoint: str) -> RequestRecorder:
    """Open a recorder that sends spans to a collector."""
    address = _traces_url(endpoint)
    try:
        from dovetail.telemetry.otel.recorder import OtelRecorder
    except ImportError as error:
        raise TelemetryError(f"--otlp-endpoint requires: {install_command('otel')}") from error
    return OtelRecorder(address)


def _traces_url(endpoint: str) -> str:
    """Return the URL for spans. An endpoint without a path gets the default path."""
    address = urlsplit(endpoint)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise TelemetryError(f"--otlp-endpoint must be an http:// or https:// URL, got {endpoint}")
    return endpoint if address.path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH
