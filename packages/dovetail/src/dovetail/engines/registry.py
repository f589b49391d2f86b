"""The engines by name. Their modules are imported when one is asked for: imports are heavy.

An engine's module has one function, `create(setup)`, which makes the engine without starting it.
An engine of somebody else is named by its function: `my_package.my_engine:create`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.engines.engine import MessageEngine, TokenEngine
from dovetail_tokenizers import Tokenizer

ENGINES: Mapping[str, str] = {
    "llamacpp": "dovetail.engines.llamacpp:create",
    "scripted": "dovetail.engines.scripted:create",
}

#: The extra of this package that brings what an engine imports.
EXTRAS: Mapping[str, str] = {"llamacpp": "llamacpp"}

Engine = TokenEngine | MessageEngine
Options = TypeVar("Options")


class EngineSetupError(Exception):
    """An engine that cannot be made, and what the user can do about it."""


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made from. `options` are its own, by the names its page documents.

    `stop_ids` are ordered: the first is the one with which the model ends a plain turn.
    """

    tokenizer: Tokenizer = field(repr=False)
    model: Path | None = None
    url: str | None = None
    context_length: int | None = None
    stop_ids: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def create_engine(name: str, setup: EngineSetup) -> Engine:
    """The engine of that name. Raises `EngineSetupError` with what is wrong or missing."""
    place = ENGINES.get(name, name)
    if ":" not in place:
        known = ", ".join(sorted(ENGINES))
        raise EngineSetupError(
            f"there is no engine {name!r}: the engines are {known}, or module:function of your own"
        )
    return _resolve(name, place)(setup)


def read_options(options: Mapping[str, Any], form: type[Options]) -> Options:
    """An engine's options as its own struct. Text is read as what the field wants."""
    try:
        return msgspec.convert(options, form, strict=False)
    except msgspec.ValidationError as error:
        raise EngineSetupError(f"the engine's options are wrong: {error}") from error


def _resolve(name: str, place: str) -> Callable[[EngineSetup], Engine]:
    module, _, attribute = place.partition(":")
    try:
        create: Callable[[EngineSetup], Engine] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise EngineSetupError(_missing(name, module, error.name or "")) from error
    except AttributeError as error:
        raise EngineSetupError(f"the module {module} has no {attribute!r}") from error
    return create


def _missing(name: str, module: str, wanted: str) -> str:
    if module == wanted or module.startswith(f"{wanted}."):
        return f"there is no module {module} for the engine {name!r}"
    extra = EXTRAS.get(name)
    remedy = f"pip install 'dovetail[{extra}]'" if extra else f"install {wanted}"
    return f"the engine {name!r} needs the package {wanted}: {remedy}"
