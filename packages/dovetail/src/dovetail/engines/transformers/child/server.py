"""Load the model and create its server."""

import asyncio
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import read_completion_model
from dovetail.engines.engine import EngineRequest
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.child.engine import BatchingEngine, create_batching_engine
from dovetail.engines.transformers.child.loader import (
    TransformersLoadError,
    library_versions,
    load_model,
)
from dovetail.engines.transformers.options import TransformersChildConfig
from dovetail.net.listener import ListenAddress, freeze_gc, open_listener, serve_app


def prepare_server(config: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Return the response to the parent, and the function that serves until the process ends.

    By then, the engine has generated one token as a check.
    """
    child_config = msgspec.convert(config, TransformersChildConfig)
    loaded = load_model(Path(child_config.model), child_config.options)
    context_length = child_config.context_length or loaded.context_length
    engine, capacity = create_batching_engine(
        Path(child_config.model), loaded, child_config.options, context_length
    )
    context_length = min(context_length, capacity)
    asyncio.run(_check_generation(engine))
    app = CompletionsServer(
        engine,
        read_completion_model(Path(child_config.model), max_model_len=context_length),
        api_key=child_config.key,
        on_engine_dead=_exit,
    )
    freeze_gc()
    path = Path(child_config.socket) if child_config.socket is not None else None
    listener, address = open_listener(ListenAddress(port=0, path=path))
    response = {
        "address": address,
        "context_length": context_length,
        "cached_tokens": engine.capabilities.cached_tokens,
        "constraints": engine.capabilities.constraints,
        "sampling": sorted(engine.capabilities.sampling),
        "logprobs": engine.capabilities.logprobs,
        "facts": {**library_versions(), **loaded.facts, "cache_tokens": capacity},
    }
    return response, lambda: serve_app(app, listener)


async def _check_generation(engine: BatchingEngine) -> None:
    """Generate one token: a model that cannot run fails before the first request."""
    await engine.start()
    request = EngineRequest("first", array("I", [0]), max_tokens=1)
    async for delta in iter_deltas(engine, request):
        if delta.finish is None:
            raise TransformersLoadError("the model does not stop at the token limit")


def _exit() -> None:
    """Exit: the process cannot work without its generation loop, and the parent starts another."""
    sys.stderr.flush()
    os._exit(1)
