"""The Dovetail server, which connects agent harnesses to inference engines."""

import os
import typing

if typing.TYPE_CHECKING:
    from dovetail.http.app import App

__all__ = ["app"]


def app(**settings: typing.Any) -> "App":
    """Build a server as an ASGI application, with the settings of `dovetail serve` as keywords.

    The environment and `dovetail.toml` are read, too; keywords override them.
    """
    from dovetail.http.app import App
    from dovetail.http.options import build_http_options
    from dovetail.server.build import build_service
    from dovetail.settings.sources import load_config
    from dovetail.telemetry.metrics import Metrics
    from dovetail.telemetry.recorders import open_recorders

    config = load_config(settings, os.environ).config
    metrics = Metrics()
    return App(
        build_service(config), build_http_options(config), metrics, open_recorders(config, metrics)
    )
