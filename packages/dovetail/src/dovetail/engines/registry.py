"""The engines by name. Their modules are imported on first use: imports are heavy.

An engine's module has a function `create(setup)`, which creates the engine without starting it;
a remote engine's module also has `discover(endpoint)`, which queries a server for its model. A
third-party engine is named by its function: `my_package.my_engine:create`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.engines.engine import RemoteModel, TokenEngine, UpstreamEngine
from dovetail.net.http_client import Endpoint
from dovetail.settings.installation import install_command
from dovetail_tokenizers import Tokenizer

ENGINES: Mapping[str, str] = {
    "llamacpp": "dovetail.engines.llamacpp:create",
    "scripted": "dovetail.engines.scripted:create",
    "sglang": "dovetail.engines.sglang:create",
    "transformers": "dovetail.engines.transformers:create",
    "vllm": "dovetail.engines.vllm:create",
}

#: Upstreams that render and parse by themselves.
UPSTREAMS: Mapping[str, str] = {"openai": "dovetail.engines.openai:create"}

#: Remote engines, with the function that queries a server for its model.
REMOTE_ENGINES: Mapping[str, str] = {
    name: f"dovetail.engines.{name}:discover" for name in ("openai", "sglang", "vllm")
}

#: The extra of this package with the dependencies of an engine.
ENGINE_EXTRAS: Mapping[str, str] = {"llamacpp": "llamacpp", "transformers": "transformers"}

OptionsT = TypeVar("OptionsT")


class EngineSetupError(Exception):
    """An engine that cannot be created, and what the user can do about it."""


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is created from. `options` are its own, by the names its page documents.

    A remote engine listens at `endpoint`, where `remote` is what it reported about its model.
    `stop_ids` are ordered: the first is the one with which the model ends a plain turn.
    `reasoning_end_ids` end a reasoning span, if the model reasons.
    """

    tokenizer: Tokenizer = field(repr=False)
    model: Path | None = None
    endpoint: Endpoint | None = None
    remote: RemoteModel | None = None
    context_length: int | None = None
    stop_ids: tuple[int, ...] = ()
    reasoning_end_ids: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UpstreamSetup:
    """What an upstream is created from: its address, its model, its options."""

    endpoint: Endpoint
    remote: RemoteModel
    options: Mapping[str, Any] = field(default_factory=dict)


def create_engine(name: str, setup: EngineSetup) -> TokenEngine:
    """The engine of that name. Raises `EngineSetupError` with what is wrong or missing."""
    path = ENGINES.get(name, name)
    if ":" not in path:
        known = ", ".join(sorted((*ENGINES, *UPSTREAMS)))
        raise EngineSetupError(
            f"there is no engine {name!r}: the engines are {known}, or module:function of your own"
        )
    create: Callable[[EngineSetup], TokenEngine] = _load_factory(name, path)
    return create(setup)


def create_upstream(name: str, setup: UpstreamSetup) -> UpstreamEngine:
    """The upstream of that name."""
    create: Callable[[UpstreamSetup], UpstreamEngine] = _load_factory(name, UPSTREAMS[name])
    return create(setup)


async def discover_model(name: str, endpoint: Endpoint) -> RemoteModel:
    """What a remote engine serves. Raises an `EngineError` where no server responds."""
    discover: Callable[[Endpoint], Awaitable[RemoteModel]] = _load_factory(
        name, REMOTE_ENGINES[name]
    )
    return await discover(endpoint)


def parse_options(options: Mapping[str, Any], options_type: type[OptionsT]) -> OptionsT:
    """An engine's options as its own struct. Text is converted to the type of the field."""
    try:
        return msgspec.convert(options, options_type, strict=False)
    except msgspec.ValidationError as error:
        raise EngineSetupError(f"the engine's options are wrong: {error}") from error


def _load_factory(name: str, path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise EngineSetupError(_missing_module_message(name, module, error.name or "")) from error
    except AttributeError as error:
        raise EngineSetupError(f"the module {module} has no {attribute!r}") from error


def _missing_module_message(name: str, module: str, missing: str) -> str:
    if module == missing or module.startswith(f"{missing}."):
        return f"there is no module {module} for the engine {name!r}"
    extra = ENGINE_EXTRAS.get(name)
    remedy = install_command(extra) if extra else f"install {missing}"
    return f"the engine {name!r} needs the package {missing}: {remedy}"
