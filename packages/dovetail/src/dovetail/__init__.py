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
    from dovetail.server.asgi_app import build_app
    from dovetail.settings.sources import load_config

    return build_app(load_config(settings, os.environ).config)
