"""The registry of engines by name. Their modules are imported on first use, to avoid slow imports.

The module of an engine has a function `create(setup)`, which creates the engine without starting
it. The module of a remote engine also has `discover(endpoint)`, which queries a server for its
model. A third-party engine is selected by its function: `my_package.my_engine:create`.
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
    "dynamo": "dovetail.engines.dynamo:create",
    "llamacpp": "dovetail.engines.llamacpp:create",
    "scripted": "dovetail.engines.scripted:create",
    "sglang": "dovetail.engines.sglang:create",
    "transformers": "dovetail.engines.transformers.engine:create",
    "vllm": "dovetail.engines.vllm.embedded:create",
}

#: Upstreams that render prompts and parse output themselves.
UPSTREAMS: Mapping[str, str] = {"openai": "dovetail.engines.openai:create"}

#: Remote engines, each with the function that queries a server for its model.
REMOTE_ENGINES: Mapping[str, str] = {
    "dynamo": "dovetail.engines.dynamo:discover",
    "openai": "dovetail.engines.openai:discover",
    "sglang": "dovetail.engines.sglang:discover",
    "vllm": "dovetail.engines.vllm.discovery:discover",
}

#: Engines that run on this machine if no address is set.
EMBEDDABLE_ENGINES = frozenset({"vllm"})

#: The extra of this package that installs the dependencies of an engine.
ENGINE_EXTRAS: Mapping[str, str] = {"llamacpp": "llamacpp", "transformers": "transformers"}

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


class EngineSetupError(Exception):
    """An engine cannot be created. The message includes what the user can do about it."""


@dataclass(frozen=True)
class EngineSetup:
    """The parameters from which an engine is created.

    `endpoint`: the address of a remote engine.
    `remote`: the model that the server at `endpoint` reported.
    `stop_ids`: ordered; the first is the one that ends a plain turn of the model.
    `reasoning_end_ids`: the ids that end a reasoning span, if the model has reasoning.
    `options`: the engine's own options, by the names in its documentation.
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
    """The parameters from which an upstream is created: its address, its model, its options."""

    endpoint: Endpoint
    remote: RemoteModel
    options: Mapping[str, Any] = field(default_factory=dict)


def runs_locally(name: str, has_address: bool) -> bool:
    """Return whether an engine runs on this machine."""
    return name not in REMOTE_ENGINES or (name in EMBEDDABLE_ENGINES and not has_address)


def create_engine(name: str, setup: EngineSetup) -> TokenEngine:
    """Create the engine of that name. Raise `EngineSetupError` if it is unknown or unusable."""
    path = ENGINES.get(name, name)
    if ":" not in path:
        raise _unknown_engine(name)
    create: Callable[[EngineSetup], TokenEngine] = _load_factory(name, path)
    return create(setup)


def require_known_engine(name: str) -> None:
    """Raise `EngineSetupError` unless the name is a value of `--engine`, or `module:function`."""
    if ":" not in name and name not in ("auto", *ENGINES, *UPSTREAMS):
        raise _unknown_engine(name)


def _unknown_engine(name: str) -> EngineSetupError:
    known = ", ".join(sorted((*ENGINES, *UPSTREAMS)))
    return EngineSetupError(
        f"unknown engine {name!r}: use {known}, or module:function of your own engine"
    )


def create_upstream(name: str, setup: UpstreamSetup) -> UpstreamEngine:
    """Create the upstream of that name."""
    create: Callable[[UpstreamSetup], UpstreamEngine] = _load_factory(name, UPSTREAMS[name])
    return create(setup)


async def discover_model(name: str, endpoint: Endpoint) -> RemoteModel:
    """Query a remote engine for its model. Raise an `EngineError` if no server responds."""
    discover: Callable[[Endpoint], Awaitable[RemoteModel]] = _load_factory(
        name, REMOTE_ENGINES[name]
    )
    return await discover(endpoint)


def parse_options(options: Mapping[str, Any], options_type: type[OptionsT]) -> OptionsT:
    """Convert an engine's options to its struct. Strings are converted to the field's type."""
    try:
        return msgspec.convert(options, options_type, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(one.name for one in msgspec.structs.fields(options_type))
        raise EngineSetupError(
            f"the engine's options are invalid: {error}. Known options: {known}"
        ) from error


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
        return (
            f"the module {module} of the engine {name!r} cannot be imported: "
            "install its package, or add its folder to PYTHONPATH"
        )
    extra = ENGINE_EXTRAS.get(name)
    remedy = install_command(extra) if extra else f"install {missing}"
    return f"the engine {name!r} requires the package {missing}: {remedy}"
