"""What a server of our own is told: the settings of this command, once more as a command line."""

import json
from collections.abc import Mapping
from typing import Any

from dovetail.models.weights import BUILT_IN_MODELS
from dovetail.server.build import DEFAULT_MODEL
from dovetail.settings.config import Config
from dovetail.settings.sources import ENV_PREFIX, SECRET_SETTINGS, LoadedConfig

_NON_FILE_ORIGINS = ("flag", "environment")


def build_serve_arguments(settings: LoadedConfig, model: str | None) -> list[str]:
    """The arguments of `dovetail serve`. Keys do not stand among them: anybody can see those."""
    arguments = [] if model is None or settings.config.models else [model]
    file = next((one for one in settings.origins.values() if one not in _NON_FILE_ORIGINS), None)
    if file is not None:
        arguments += ["--config", file]
    for name, origin in settings.origins.items():
        if origin == "flag" and name not in SECRET_SETTINGS:
            arguments += _to_flag_arguments(name.replace("_", "-"), getattr(settings.config, name))
    return arguments


def build_port_arguments(settings: LoadedConfig) -> list[str]:
    """A free port, where none is asked for: others may run beside it."""
    return [] if "http_port" in settings.origins else ["--http-port", "0"]


def build_secret_environment(settings: LoadedConfig) -> dict[str, str]:
    """The keys, as variables of its environment."""
    found = {name: getattr(settings.config, name) for name in SECRET_SETTINGS}
    return {
        f"{ENV_PREFIX}{name.upper()}": value if isinstance(value, str) else ",".join(value)
        for name, value in found.items()
        if value
    }


def find_builtin_window(config: Config, model: str | None) -> tuple[str, int] | None:
    """The model that would be served and its window, where it is known without fetching it."""
    named = model or config.model or DEFAULT_MODEL
    if config.engine_url or config.models or named not in BUILT_IN_MODELS:
        return None
    window = BUILT_IN_MODELS[named].context_length
    return named, min(window, config.context_length or window)


def _to_flag_arguments(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, tuple):
        return [part for one in value for part in (f"--{name}", str(one))]
    return [f"--{name}", json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)]
