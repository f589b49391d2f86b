"""Load the model and create the engine that the child process serves."""

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.steps.messages import EngineDescription, describe_engine
from dovetail.engines.transformers.child.engine import BatchingEngine, create_batching_engine
from dovetail.engines.transformers.child.loader import (
    TransformersLoadError,
    library_versions,
    load_model,
)
from dovetail.engines.transformers.options import TransformersChildConfig


def load(config: Mapping[str, Any]) -> "ServedEngine":
    """Load the model. Raise an error with the reason if that fails."""
    child_config = msgspec.convert(config, TransformersChildConfig)
    folder = Path(child_config.model)
    loaded = load_model(folder, child_config.options)
    context_length = child_config.context_length or loaded.context_length
    engine, capacity = create_batching_engine(folder, loaded, child_config.options, context_length)
    facts = {**library_versions(), **loaded.facts, "cache_tokens": capacity}
    description = describe_engine(
        engine.name,
        engine.capabilities,
        model=child_config.model,
        context_length=min(context_length, capacity),
        facts=facts,
        kv_tokens=capacity,
        retention=engine.retains_pages,
    )
    return ServedEngine(engine, description)


class ServedEngine:
    """The engine with its description. It generates one token as a check when it starts."""

    def __init__(self, engine: BatchingEngine, description: EngineDescription) -> None:
        self._engine = engine
        self._description = description
        self.name = engine.name
        self.capabilities = engine.capabilities
        self.generate = engine.generate
        self.retain = engine.retain
        self.health = engine.health
        self.stop = engine.stop

    def describe(self) -> EngineDescription:
        return self._description

    async def start(self) -> None:
        """Start the loop. A model that cannot run fails before the first request."""
        await self._engine.start()
        check = _CheckSink()
        await self._engine.generate(EngineRequest("first", array("I", [0]), max_tokens=1), check)
        if not check.finished:
            raise TransformersLoadError("the model does not stop at the token limit")


class _CheckSink:
    """A sink that only records whether the output has ended."""

    finished = False

    def push(self, delta: TokenDelta) -> bool:
        self.finished = delta.finish is not None
        return True

    async def drain(self) -> bool:
        return True
