"""Background responses that tests control, and servers that share a store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from http_fixture import Stage, StageEngine, service, serving

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import BackgroundOptions, HttpOptions
from dovetail.pipeline.registry import ModelRegistry
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.server.follower_limit import MAX_FOLLOWED_STREAMS
from dovetail.server.peer_responses import join_peers


class Gate:
    """An engine that generates a word, waits for the test, and generates the rest."""

    def __init__(self, stage: Stage) -> None:
        self.opened = asyncio.Event()
        self.ended = 0
        self.ends: asyncio.Queue[None] = asyncio.Queue()
        self._stage = stage
        stage.engine.plan = self.play

    async def play(self, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        engine = self._stage.engine
        try:
            yield TokenDelta(engine.tokenizer.encode("Once "))
            await self.opened.wait()
            yield TokenDelta([*engine.tokenizer.encode("upon."), engine.stop_id], finish="stop")
        finally:
            self.ended += 1
            self.ends.put_nowait(None)


async def until(stage: Stage, id: str, status: str) -> Any:
    """Wait until the response has the status."""
    client = stage.openai()
    while (response := await client.responses.retrieve(id)).status != status:
        assert response.status in ("queued", "in_progress"), response.status
        await asyncio.sleep(0.01)
    return response


def shared_service(store: MemoryResponseBackend) -> tuple[ModelRegistry, StageEngine]:
    """One of several servers with a shared store."""
    registry, engine = service()
    return ModelRegistry(registry.entries, {}, ResponseStore(store, has_peers=True)), engine


@asynccontextmanager
async def two_workers(
    folder: Path,
    options: HttpOptions | None = None,
    *,
    max_followed_streams: int = MAX_FOLLOWED_STREAMS,
) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two worker processes of one server, in one event loop. They do not poll their store."""
    polling = BackgroundOptions(poll_seconds=3600.0)
    options = replace(options or HttpOptions(), background_options=polling)
    store = MemoryResponseBackend()
    (one, first_engine), (two, second_engine) = shared_service(store), shared_service(store)
    async with (
        serving(options, registry=one) as first,
        serving(options, registry=two) as second,
        join_peers(first.app, folder, 0, 2, max_followed_streams=max_followed_streams),
        join_peers(second.app, folder, 1, 2, max_followed_streams=max_followed_streams),
    ):
        first.engine, second.engine = first_engine, second_engine
        yield first, second
