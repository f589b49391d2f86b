"""The engines that the settings ask for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.engines.engine import UpstreamEngine
from dovetail.engines.registry import (
    EngineSetup,
    EngineSetupError,
    UpstreamSetup,
    create_engine,
    create_upstream,
)
from dovetail.models.loader import Model
from dovetail.routing.pool import ReplicaPool
from dovetail.server.engines import RemoteEngine
from dovetail.settings.config import Config


def create_pool(
    config: Config, model: Model, path: Path, remote: RemoteEngine | None
) -> ReplicaPool:
    """The replicas of a token engine: one for each address, or as many as are wanted here."""
    name = engine_name(config)
    first = [
        id for stop in model.stop_strings if (id := model.tokenizer.controls.get(stop)) is not None
    ]
    endpoints = remote.endpoints if remote is not None else (None,) * max(1, config.replicas)
    setups = [
        EngineSetup(
            tokenizer=model.tokenizer,
            model=path,
            endpoint=endpoint,
            remote=remote.model if remote is not None else None,
            context_length=config.context_length,
            stop_ids=(*first, *(model.stop_ids - set(first))),
            reasoning_end_ids=model.reasoning_end_ids,
            options=_engine_options(config, name),
        )
        for endpoint in endpoints
    ]
    engines = [create_engine(name, setup) for setup in setups]
    return ReplicaPool(engines, consistent=config.workers > 1)


def create_upstream_engine(config: Config, remote: RemoteEngine) -> UpstreamEngine:
    """An upstream that parses by itself."""
    if len(remote.endpoints) > 1:
        raise EngineSetupError(
            f"the engine {config.engine!r} takes one --engine-url: its answers cannot be taken "
            "over by another server"
        )
    options = _engine_options(config, config.engine)
    return create_upstream(config.engine, UpstreamSetup(remote.endpoints[0], remote.model, options))


def engine_name(config: Config) -> str:
    if config.engine != "auto":
        return config.engine
    return "scripted" if config.script is not None else "llamacpp"


def _engine_options(config: Config, name: str) -> dict[str, Any]:
    """The engine's own options: those with flags, then those given by name."""
    flags: Mapping[str, Mapping[str, Any]] = {
        "scripted": {"script": config.script},
        "llamacpp": {
            "threads": config.threads,
            "slots": config.slots,
            "gpu_layers": config.gpu_layers,
        },
        "openai": {
            "api": config.upstream_api,
            "raw": config.upstream_raw,
            "tool_parser": config.tool_call_parser,
            "reasoning_parser": config.reasoning_parser,
        },
    }
    options = {key: value for key, value in flags.get(name, {}).items() if value is not None}
    for written in config.engine_option:
        key, equals, value = written.partition("=")
        if not (key and equals):
            raise ValueError(f"--engine-option {written}: NAME=VALUE is wanted")
        options[key.replace("-", "_")] = value
    return options
