"""Load a model with vLLM. Options are its engine arguments, by the names of its command line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from dovetail.engines.vllm.child.engine import AsyncLlmEngine

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:  # before 0.12
    from vllm.utils import FlexibleArgumentParser

#: Used unless an option sets them. Requests without a priority are scheduled as by vLLM's default.
DEFAULT_ARGUMENTS: Mapping[str, str] = {"scheduling_policy": "priority"}


_SWITCH_VALUES: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class InvalidArgument(Exception):
    """An option that vLLM does not have or whose value it rejects."""


class _ArgumentParser(FlexibleArgumentParser):  # type: ignore[misc]
    """A parser that raises errors instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(message)


def parse_engine_args(model: str, options: Mapping[str, str]) -> Any:
    """Return the `AsyncEngineArgs`. Raise `InvalidArgument` with vLLM's reason."""
    parser = AsyncEngineArgs.add_cli_args(_ArgumentParser(allow_abbrev=False))
    values = {**DEFAULT_ARGUMENTS, **options}
    line = [part for name, value in values.items() for part in _to_flags(parser, name, value)]
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", model, *line]))


def _to_flags(parser: Any, name: str, value: str) -> list[str]:
    """Return an option as a command line: switches have no value, lists have several.

    A dot selects a field of a structured argument, as on vLLM's command line.
    """
    head, dot, field = name.partition(".")
    flag = "--" + head.replace("_", "-")
    known = parser._option_string_actions
    if flag not in known:
        raise InvalidArgument(f"vLLM has no engine argument {head!r}")
    if dot:
        return [f"{flag}.{field}", value]
    if known[flag].nargs == 0:
        return _to_switch(known, flag, name, value)
    if known[flag].nargs in ("+", "*") and value.startswith("["):
        return [flag, *_parse_list(name, value)]
    return [flag, value]


def _to_switch(known: Mapping[str, Any], flag: str, name: str, value: str) -> list[str]:
    wanted = _SWITCH_VALUES.get(value.lower())
    if wanted is None:
        raise InvalidArgument(f"the engine argument {name} must be true or false, got {value!r}")
    if wanted:
        return [flag]
    negative = "--no-" + flag.removeprefix("--")
    return [negative] if negative in known else []  # some can only be switched on


def _parse_list(name: str, value: str) -> list[str]:
    try:
        return [str(one) for one in json.loads(value)]
    except ValueError as error:
        raise InvalidArgument(
            f"the engine argument {name} must be a JSON list, got {value!r}"
        ) from error


class VllmChildConfig(msgspec.Struct, frozen=True):
    """The model, vLLM's engine arguments by name, and the folders of LoRA adapters by name."""

    model: str
    arguments: dict[str, str] = {}
    adapters: dict[str, str] = {}


def load(config: Mapping[str, Any]) -> AsyncLlmEngine:
    """Load the model, which takes seconds to minutes. Raise an error with vLLM's reason."""
    child = msgspec.convert(config, VllmChildConfig)
    adapters = {name: _adapter_path(name, path) for name, path in child.adapters.items()}
    arguments = dict(child.arguments)
    if child.adapters:
        arguments.setdefault("enable_lora", "true")
        arguments.setdefault("max_loras", str(len(child.adapters)))
    llm = AsyncLLM.from_engine_args(parse_engine_args(child.model, arguments))
    return AsyncLlmEngine(llm, child.model, adapters)


def _adapter_path(name: str, path: str) -> str:
    """Return the folder of an adapter, or its hub id. vLLM would report it at a request only."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if path.startswith(("/", ".", "~")):
        raise InvalidArgument(f"the folder {path} of the LoRA adapter {name!r} does not exist")
    return path
