"""Derive the command-line flags from the fields of `Config`, and load models by name."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Concatenate, get_args, get_origin, get_type_hints

import typer

from dovetail.models.loader import Model, load_model
from dovetail.models.weights import find_model
from dovetail.server.build import bundled_template
from dovetail.settings.config import Config
from dovetail.settings.sources import (
    CONFIG_FILE_ENV,
    ConfigError,
    LoadedConfig,
    literal_values,
    load_config,
)

#: Other spellings under which users of Dynamo (`--dyn-…`), vLLM and SGLang know a flag.
FLAG_ALIASES = {
    "tool_call_parser": ("--tool-call-parser", "--dyn-tool-call-parser"),
    "reasoning_parser": ("--reasoning-parser", "--dyn-reasoning-parser"),
    "http_host": ("--http-host", "--host"),
    "http_port": ("--http-port", "--port"),
}
_FILE_ONLY = ("models",)
_ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML settings file.")]


def with_settings(
    command: Callable[Concatenate[LoadedConfig, ...], None], *, search_working_dir: bool = True
) -> Callable[..., None]:
    """Add a flag for each setting to a command, and pass it the loaded settings.

    The settings are the command's first parameter. Its other parameters are its own arguments and
    flags, which are listed first in the help. `search_working_dir`: read the settings file of the
    working folder, if there is one.
    """
    own = list(inspect.signature(command).parameters.values())[1:]
    no_file = {} if search_working_dir else {CONFIG_FILE_ENV: ""}

    def run(config: Path | None = None, **flags: Any) -> None:
        own_arguments = {one.name: flags.pop(one.name) for one in own}
        try:
            settings = load_config(_drop_unset(flags), {**no_file, **os.environ}, config)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        command(settings, **own_arguments)

    kinds = get_type_hints(Config)
    flags = [
        (
            one.name,
            _build_flag(one.name, kinds[one.name], _flag_help(one.metadata["help"], one.default)),
        )
        for one in fields(Config)
        if one.name not in _FILE_ONLY and one.name not in {mine.name for mine in own}
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    parameters += [
        _build_parameter(name, flag) for name, flag in [("config", _ConfigOption), *flags]
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    return run


def _build_parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _flag_help(text: str, default: Any) -> str:
    """Return the help text of a flag with its default, if it has one."""
    if isinstance(default, bool):
        return f"{text} (default: on)" if default else text
    if isinstance(default, float):
        default = int(default) if default.is_integer() else default
    return f"{text} (default: {default})" if isinstance(default, int | float | str) else text


def _build_flag(name: str, kind: Any, help: str) -> Any:
    if name == "model":
        return Annotated[str | None, typer.Argument(help=help, metavar="MODEL")]
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        return Annotated[
            bool | None, typer.Option(f"{flag}/--no-{name.replace('_', '-')}", help=help)
        ]
    if get_origin(kind) is tuple:
        metavar = ",".join(literal_values(kind)) or "<str>"
        return Annotated[
            list[str] | None, typer.Option(flag, help=f"{help} (repeatable)", metavar=metavar)
        ]
    flags = FLAG_ALIASES.get(name, (flag,))
    choices = "|".join(literal_values(kind)) or None
    return Annotated[_flag_type(kind) | None, typer.Option(*flags, help=help, metavar=choices)]


def _flag_type(kind: Any) -> Any:
    """Return the type to parse a flag as. Choices and JSON objects are validated by `Config`."""
    for inner in (kind, *get_args(kind)):
        if inner in (int, float, Path):
            return inner
    return str


def _drop_unset(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value not in (None, [])}


def find_and_load_model(
    model: str,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    custom_template: Path | None = None,
) -> Model:
    """Load a model by name or path.

    Raises `ModelUnavailableError` or `ModelLoadError`.
    """
    return load_model(
        find_model(model),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        custom_template=custom_template or bundled_template(model),
    )
