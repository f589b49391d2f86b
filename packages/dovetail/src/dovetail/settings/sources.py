"""Load settings from defaults, a TOML file, the environment and flags.

Later sources override earlier ones: defaults < TOML file < environment (DOVETAIL_...) < flags
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from dovetail.settings.config import Config

ENV_PREFIX = "DOVETAIL_"
DEFAULT_CONFIG_FILE = "dovetail.toml"  # read from the working folder by default
CONFIG_FILE_ENV = "DOVETAIL_CONFIG"
SECRET_SETTINGS = ("api_key", "engine_api_key")
_RESERVED_ENV = {
    CONFIG_FILE_ENV, "DOVETAIL_HOME", "DOVETAIL_TEMPLATES", "DOVETAIL_SIBLINGS",
    "DOVETAIL_OPEN_RESPONSES", "DOVETAIL_VLLM_PYTHON", "DOVETAIL_TORCH_PYTHON",
    "DOVETAIL_DYNAMO_PYTHON", "DOVETAIL_KV_PYTHON", "DOVETAIL_RAY_PYTHON", "DOVETAIL_AGENT_TRACE",
    "DOVETAIL_HARNESSES",
}  # fmt: skip
_URL_PASSWORD = re.compile(r"(://[^/@:]*:)[^/@]*@")
_MAX_NUMBER = 1e18
_MIN_VALUES: Mapping[str, int] = {
    "context_length": 1, "drain_timeout": 0, "engine_wait": 0, "http_port": 0, "max_body_bytes": 1,
    "kv_block_size": 1, "kv_blocks": 1, "kv_tokens": 1, "session_max_wait": 0,
    "max_blocks": 1, "max_concurrent_per_key": 1, "max_concurrent_requests": 1, "max_held_bytes": 1,
    "max_server_tool_turns": 1, "server_tool_timeout": 1,
    "max_messages": 1, "max_tool_bytes": 1, "max_tools": 0,
    "max_queued_requests": 0, "migration_limit": 0, "queue_timeout": 0, "rate_limit_requests": 1,
    "rate_limit_tokens": 1, "recover_identical_calls": 2, "recover_loop_tokens": 256,
    "recovery_wait": 0, "replicas": 1, "responses_max_age": 0,
    "responses_max_bytes": 0, "resume_drop_thinking": 0, "slots": 1, "temperature": 0, "threads": 1,
    "top_p": 0, "budget_cost_per_month": 0, "budget_tokens_per_day": 1,
    "budget_tokens_per_month": 1, "price_cached": 0, "price_output": 0, "price_prompt": 0,
    "usage_max_age": 86_400, "usage_max_sessions": 0,
    "trace_block_tokens": 1, "trace_keep": 0, "trace_max_bytes": 0, "workers": 1,
}  # fmt: skip
_MAX_PRICE = 1_000_000  # costs are summed as 64-bit integers in billionths
_MAX_VALUES: Mapping[str, int] = {
    "http_port": 65535, "workers": 256,
    "price_cached": _MAX_PRICE, "price_output": _MAX_PRICE, "price_prompt": _MAX_PRICE,
}  # fmt: skip
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class ConfigError(ValueError):
    """Raised for an invalid setting; the message names its source."""


@dataclass(frozen=True)
class LoadedConfig:
    """The settings, and the source of each one that is not a default."""

    config: Config
    origins: Mapping[str, str]


def load_config(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> LoadedConfig:
    """Merge all sources. Flags that are None were not given."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    path = file or _find_config_file(environment)
    sources = [
        (_read_file(path) if path is not None else {}, str(path)),
        (_read_environment(environment), "environment"),
        ({name: value for name, value in flags.items() if value is not None}, "flag"),
    ]
    for found, origin in sources:
        for name, value in found.items():
            if name not in _TYPES:  # a keyword of `dovetail.app`; other sources are checked above
                raise ConfigError(f"unknown setting {name!r}{_suggest_name(name, _TYPES)}")
            values[name] = _convert_value(name, value, origin)
            origins[name] = origin
    _reject_per_model_flags(values, origins)
    return LoadedConfig(Config(**values), origins)


def dump_config(loaded: LoadedConfig, *, secrets: bool = False) -> dict[str, Any]:
    """Return the settings as JSON values. Keys are masked unless `secrets` is set."""
    return {
        one.name: _to_json_value(one.name, getattr(loaded.config, one.name), secrets)
        for one in fields(Config)
    }


def _to_json_value(name: str, value: Any, secrets: bool) -> Any:
    if name in SECRET_SETTINGS and value and not secrets:
        return "***" if isinstance(value, str) else ["***" for _ in value]
    if name == "models":
        return [
            {key: _to_json_value(key, one, secrets) for key, one in table.items()}
            for table in value
        ]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_to_json_value("", one, secrets) for one in value]
    if isinstance(value, str) and not secrets:
        return _URL_PASSWORD.sub(r"\1***@", value)
    return value


def _find_config_file(environment: Mapping[str, str]) -> Path | None:
    """Return the settings file to read. An empty environment variable disables it."""
    path = environment.get(CONFIG_FILE_ENV)
    if path is not None:
        return Path(path) if path else None
    return Path(DEFAULT_CONFIG_FILE) if Path(DEFAULT_CONFIG_FILE).is_file() else None


def _read_file(path: Path) -> dict[str, Any]:
    """Read a TOML file. Keys have hyphens or underscores; tables only group them."""
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {path}: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    found: dict[str, Any] = {}
    for name, value in _expand_engine_table(parsed, str(path)).items():
        key = name.replace("-", "_")
        if isinstance(value, dict) and key not in _TYPES:
            found |= {inner.replace("-", "_"): item for inner, item in value.items()}
        else:
            found[key] = value
    for name in found:
        if name not in _TYPES:
            raise ConfigError(f"{path}: unknown setting {name!r}{_suggest_name(name, _TYPES)}")
    return found


def _expand_engine_table(table: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Replace an `[engine]` table by the settings `engine` and `engine_option`.

    The table has the `name` of the engine and its options.
    """
    engine = table.get("engine")
    if not isinstance(engine, dict):
        return dict(table)
    if any(name in table for name in ("engine-option", "engine_option")):
        raise ConfigError(f"engine_option ({origin}): cannot be combined with [engine]")
    options = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in engine.items()
        if name != "name"
    ]
    named = {"engine": engine["name"]} if "name" in engine else {}
    rest = {name: value for name, value in table.items() if name != "engine"}
    return {**rest, **named, "engine_option": options}


def _suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a question that names the setting that was probably meant, or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENV_PREFIX) or variable in _RESERVED_ENV or not text:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name not in _TYPES:
            raise ConfigError(f"{variable}: unknown setting {name!r}{_suggest_name(name, _TYPES)}")
        found[name] = _parse_env_value(name, text)
    return found


def _parse_env_value(name: str, text: str) -> Any:
    """Convert a variable by the type of its setting: lists are split at commas."""
    kind = get_origin(_TYPES[name]) or _TYPES[name]
    if kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    return text


def _convert_value(name: str, value: Any, origin: str) -> Any:
    if name == "models":
        return _convert_model_tables(value, origin)
    if _TYPES[name] == Mapping[str, Any] and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            label = _label(name, origin)
            raise ConfigError(f"{label}: must be a JSON object: {error}") from error
    if isinstance(value, Path):
        return value
    if get_origin(_TYPES[name]) is tuple:
        value = _to_list(value, literal_values(_TYPES[name]))
    try:
        typed = msgspec.convert(value, _TYPES[name], strict=False, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        choices = [repr(one) for one in literal_values(_TYPES[name])]
        problem = (
            f"must be one of {', '.join(choices)}, got {value!r}"
            if choices
            else _describe_type_error(name, value) or str(error)
        )
        raise ConfigError(f"{_label(name, origin)}: {problem}") from error
    minimum = _MIN_VALUES.get(name)
    if minimum is not None and typed is not None and not minimum <= typed < _MAX_NUMBER:
        bound = f"< {_MAX_NUMBER:g}" if typed >= minimum else f">= {minimum}"
        raise ConfigError(f"{_label(name, origin)}: must be {bound}, got {value!r}")
    maximum = _MAX_VALUES.get(name)
    if maximum is not None and typed is not None and typed > maximum:
        raise ConfigError(f"{_label(name, origin)}: must be <= {maximum}, got {value!r}")
    if name == "api_key" and "" in typed:  # an unset shell variable must not open the server
        raise ConfigError(f"{_label(name, origin)}: must not be empty")
    return typed


def _to_list(value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the items of a list. A list of choices may be separated by commas."""
    items = [value] if isinstance(value, str) else value
    if not choices or not all(isinstance(one, str) for one in items):
        return items
    return [part.strip() for one in items for part in one.split(",") if part.strip()]


def _describe_type_error(name: str, value: Any) -> str | None:
    """Return what a number or a switch must be; None for other settings, which may be secrets."""
    kinds = {_TYPES[name], *get_args(_TYPES[name])}
    for kind, words in ((bool, "true or false"), (int, "an integer"), (float, "a number")):
        if kind in kinds:
            return f"must be {words}, got {value!r}"
    return None


def _label(name: str, origin: str) -> str:
    """Return a setting as the user wrote it: as a flag, a variable or a key of a file."""
    if origin == "flag":
        return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
    return f"{ENV_PREFIX}{name.upper()}" if origin == "environment" else f"{name} ({origin})"


def _reject_per_model_flags(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Reject per-model flags if there are [[models]] tables: they would be ambiguous."""
    if not values.get("models"):
        return
    for name, origin in origins.items():
        if name in _PER_MODEL - _TABLE_DEFAULTS and origin in ("flag", "environment"):
            raise ConfigError(
                f"{_label(name, origin)}: cannot be combined with [[models]]; set it per model"
            )


def _convert_model_tables(value: Any, origin: str) -> tuple[dict[str, Any], ...]:
    """Convert the [[models]] tables, each with the per-model settings."""
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ConfigError(f"models ({origin}): must be [[models]] tables in the settings file")
    tables = []
    for number, table in enumerate(value, 1):
        table_origin = f"{origin}, model {number}"
        expanded = _expand_engine_table(table, table_origin)
        settings = {name.replace("-", "_"): one for name, one in expanded.items()}
        for name in settings:
            if name not in _PER_MODEL:
                raise ConfigError(
                    f"{table_origin}: unknown per-model setting {name!r}"
                    f"{_suggest_name(name, _PER_MODEL)}"
                )
        tables.append(
            {name: _convert_value(name, one, table_origin) for name, one in settings.items()}
        )
    return tuple(tables)


def literal_values(kind: Any) -> tuple[Any, ...]:
    """Return the allowed values of a Literal type, also inside unions."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(one for inner in get_args(kind) for one in literal_values(inner))


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise msgspec.ValidationError(f"must be a path, got {value!r}")


_TYPES: dict[str, Any] = get_type_hints(Config)
_PER_MODEL = frozenset(one.name for one in fields(Config) if one.metadata["per_model"])
#: Settings that apply to all models without their own. Keys do not belong in a file, and one key
#: may be valid for all models.
_TABLE_DEFAULTS = frozenset({*SECRET_SETTINGS, "codex_profile"})
