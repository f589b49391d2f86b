"""Build the ASGI application of a server from its settings."""

from dovetail.http.app import App
from dovetail.http.options import build_http_options
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.recorders import open_recorders
from dovetail.usage.opening import open_usage


def build_app(config: Config) -> App:
    """Build the application for a server with `lifespan` support, which starts the engines."""
    metrics = Metrics()
    return App(
        build_service(config),
        build_http_options(config),
        metrics,
        open_recorders(config, metrics),
        open_usage(config),
    )
