"""Settings of frontends that another program starts, such as Ray Serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from dovetail.engines.registry import EngineSetupError
from dovetail.settings.config import Config
from dovetail.settings.sources import CONFIG_FILE_ENV, ENV_PREFIX, load_config

DEFAULT_FRONTENDS = 2


@dataclass(frozen=True)
class FrontendOptions:
    """How frontends are run.

    `config`: the settings of each frontend.
    `frontends`: the number of frontends.
    `num_cpus`: the CPUs that are reserved for each frontend.
    """

    config: Config
    frontends: int = DEFAULT_FRONTENDS
    num_cpus: float = 1.0


def read_options(arguments: Mapping[str, Any]) -> FrontendOptions:
    """Return the options of frontends that can work together.

    `arguments` are settings of `dovetail serve`, the fields of `FrontendOptions`, and `config`: a
    settings file.
    """
    rest = dict(arguments)
    frontends = _read_number(rest, "frontends", DEFAULT_FRONTENDS)
    if not frontends.is_integer():
        raise EngineSetupError(f"frontends must be a whole number, got {frontends:g}")
    num_cpus = _read_number(rest, "num_cpus", 1.0)
    options = FrontendOptions(_read_config(rest), int(frontends), num_cpus)
    _check_options(options)
    return options


def _read_number(arguments: dict[str, Any], name: str, default: float) -> float:
    value = arguments.pop(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if not isfinite(number):
        raise EngineSetupError(f"{name} must be a number, got {value!r}")
    return number


def _read_config(options: dict[str, Any]) -> Config:
    """Return the settings of the frontends. Texts are read as environment variables are."""
    file = options.pop("config", None)
    known = Config.__dataclass_fields__
    texts = {
        name: value for name, value in options.items() if isinstance(value, str) and name in known
    }
    environment = {f"{ENV_PREFIX}{name.upper()}": value for name, value in texts.items()}
    if file is None:
        environment[CONFIG_FILE_ENV] = ""  # no file of the current directory
    flags = {name: value for name, value in options.items() if name not in texts}
    return load_config(flags, environment, None if file is None else Path(file)).config


def _check_options(options: FrontendOptions) -> None:
    """Reject settings with which several frontends cannot work together."""
    config, frontends = options.config, options.frontends
    if frontends < 1:
        raise EngineSetupError(f"frontends must be >= 1, got {frontends}")
    if config.workers != 1:
        raise EngineSetupError(
            f"workers must be 1 with Ray Serve, got {config.workers}: set frontends"
        )
    if config.store == "memory" and frontends > 1:
        raise EngineSetupError(
            "store=memory cannot be combined with several frontends, which must find each other's "
            "turns: use a redis:// URL, or sqlite if all frontends run on one machine"
        )
