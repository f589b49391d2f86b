"""Profiles: an endpoint with its settings, of which an experiment compares two.

A profile is a TOML file, or `key=value` pairs separated by commas. It either names a running
endpoint (`url`) or has settings of `dovetail serve`, with which a server is started.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from dovetail.compare.task_set import CompareError
from dovetail.settings.config import Config
from dovetail.settings.sources import (
    CONFIG_FILE_ENV,
    SECRET_SETTINGS,
    ConfigError,
    LoadedConfig,
    load_config,
)

#: Short names of settings, and of their values where these differ.
SHORT_NAMES = {
    "dispatch": "enable_streaming_tool_dispatch",
    "ledger": "replay",
    "retention": "reasoning_retention",
    "template": "custom_jinja_template",
}
_LEDGER_VALUES = {"on": "auto", "off": "client", True: "auto", False: "client"}
#: Settings that the experiment itself sets for each server.
_RESERVED_SETTINGS = frozenset({"http_host", "http_port", "models", "workers"})
_SERVER_SETTINGS = frozenset(one.name for one in fields(Config)) - _RESERVED_SETTINGS
_SECRET_NAME = re.compile(r"key|token|secret|passw|auth", re.IGNORECASE)
_MASK = "***"
_URL_PASSWORD = re.compile(r"(://[^/@:]*:)[^/@]*@")


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a profile that are not settings of a server."""

    url: str | None = None
    alias: str | None = None
    api: str | None = None
    api_key_env: str | None = None
    catalog: bool = True
    environment: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    follow_up: str | None = None
    max_requests: int = 40
    max_output_chars: int = 20_000


@dataclass(frozen=True)
class Profile:
    """One side of an experiment.

    `url`: a running endpoint. If None, a server with `settings` is started.
    `alias`: the model name that the harness requests; None: the first model of the endpoint.
    `api`: the API that the harness uses, if it supports several.
    `api_key_env`: the environment variable with the key of the endpoint.
    `catalog`: whether Codex gets the server's model catalog, or uses only its own.
    `environment`, `arguments`: additional ones of the harness.
    `follow_up`: a second prompt of the built-in agent, after the task.
    `max_requests`, `max_output_chars`: limits of the built-in agent, per run and tool result.
    """

    url: str | None
    settings: LoadedConfig
    values: Mapping[str, Any] = field(repr=False)
    alias: str | None = None
    api: str | None = None
    api_key_env: str | None = None
    catalog: bool = True
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    arguments: tuple[str, ...] = ()
    follow_up: str | None = None
    max_requests: int = 40
    max_output_chars: int = 20_000

    @property
    def key(self) -> str | None:
        """The API key of the endpoint."""
        if self.api_key_env is not None:
            return os.environ.get(self.api_key_env)
        return next(iter(self.settings.config.api_key), None)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as it was given, without the values of keys."""
        return {name: _mask(name, value) for name, value in self.values.items()}


def load_profile(text: str) -> Profile:
    """Read a profile from a TOML file or from `key=value,...`. Raises CompareError."""
    path = Path(text).expanduser()
    is_file = text.endswith(".toml") or path.is_file()
    values = _read_toml(path) if is_file else _parse_pairs(text)
    return build_profile(values, str(path) if is_file else text)


def build_profile(values: Mapping[str, Any], origin: str) -> Profile:
    """Build a profile from its keys. Raises CompareError that names the first invalid key."""
    named = {name.replace("-", "_"): value for name, value in values.items()}
    option_names = set(_Options.__struct_fields__)
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in named.items():
        if name in option_names:
            options[name] = value
        else:
            setting = SHORT_NAMES.get(name, name)
            _require_setting(name, setting, origin)
            is_switch = name == "ledger" and isinstance(value, str | bool)
            settings[setting] = _LEDGER_VALUES.get(value, value) if is_switch else value
    try:
        parsed = msgspec.convert(options, _Options, strict=False)
        loaded = load_config(settings, {CONFIG_FILE_ENV: ""})
    except (msgspec.ValidationError, ConfigError) as error:
        raise CompareError(f"profile {origin}: {error}") from error
    _validate(parsed, [name for name in named if name not in option_names], origin)
    return Profile(settings=loaded, values=named, **msgspec.structs.asdict(parsed))


def _require_setting(name: str, setting: str, origin: str) -> None:
    if setting in _SERVER_SETTINGS:
        return
    if setting in _RESERVED_SETTINGS:
        raise CompareError(f"profile {origin}: {name!r} cannot be set in a profile")
    known = [*_Options.__struct_fields__, *SHORT_NAMES, *_SERVER_SETTINGS]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise CompareError(f"profile {origin}: unknown key {name!r}{hint}")


def _validate(options: _Options, settings: Sequence[str], origin: str) -> None:
    if options.url is not None and settings:
        names = ", ".join(sorted(settings))
        raise CompareError(
            f"profile {origin}: {names} cannot be combined with url: these settings only apply to "
            "a server that is started for the experiment"
        )
    if options.url is None and not settings:
        raise CompareError(
            f"profile {origin}: set url, or settings of a server such as engine and engine_url"
        )
    for name in ("max_requests", "max_output_chars"):
        if getattr(options, name) < 1:
            raise CompareError(
                f"profile {origin}: {name} must be >= 1, got {getattr(options, name)}"
            )
    variable = options.api_key_env
    if variable is not None and not os.environ.get(variable):
        raise CompareError(f"profile {origin}: the environment variable {variable} is not set")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CompareError(f"cannot read the profile {path}: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise CompareError(f"profile {path} is not valid TOML: {error}") from error


def _parse_pairs(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise CompareError(
                f"profile {text!r} is neither a TOML file nor a list of key=value: {pair!r}"
            )
        if name in values:
            raise CompareError(
                f"profile {text!r}: {name} is set twice; use a TOML file for a list of values"
            )
        values[name] = value.strip()
    return values


def _mask(name: str, value: Any) -> Any:
    if name in SECRET_SETTINGS:
        return _MASK
    if name == "environment":
        return {key: _MASK if _SECRET_NAME.search(key) else one for key, one in dict(value).items()}
    if isinstance(value, tuple | list):
        return [_mask(name, one) for one in value]
    return _URL_PASSWORD.sub(rf"\1{_MASK}@", str(value)) if isinstance(value, str | Path) else value
