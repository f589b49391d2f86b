"""An engine's deltas for whoever would rather ask for them one by one."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.net.client_connection import SseDataReader


class TokenGenerator(Protocol):
    """What an engine, or a part of one, does."""

    async def generate(self, request: EngineRequest, listener: TokenSink) -> None: ...


class _SingleDeltaSink:
    """A listener with room for one delta."""

    __slots__ = ("_available", "_delta", "_requested")

    def __init__(self) -> None:
        self._delta: TokenDelta | None = None
        self._available = asyncio.Event()
        self._requested = asyncio.Event()

    def push(self, delta: TokenDelta) -> bool:
        self._delta = delta
        self._requested.clear()
        self._available.set()
        return False

    async def drain(self) -> bool:
        await self._requested.wait()
        return True

    def close(self, generation: "asyncio.Task[None]") -> None:
        self._available.set()

    async def fetch(self) -> TokenDelta | None:
        """The next delta; None where there is no other."""
        self._requested.set()
        await self._available.wait()
        self._available.clear()
        delta, self._delta = self._delta, None
        return delta


async def iter_deltas(engine: TokenGenerator, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
    """The deltas of a generation, none before it is asked for. Closing it cancels the rest."""
    desk = _SingleDeltaSink()
    generation = asyncio.create_task(engine.generate(request, desk))
    generation.add_done_callback(desk.close)
    try:
        while (delta := await desk.fetch()) is not None:
            yield delta
        await generation
    finally:
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)


async def collect_token_ids(engine: TokenGenerator, request: EngineRequest) -> list[int]:
    """All ids of a generation."""
    heard = _CollectingIdSink()
    await engine.generate(request, heard)
    return heard.ids


class _CollectingIdSink:
    """A listener that keeps the ids."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[int] = []

    def push(self, delta: TokenDelta) -> bool:
        self.ids += delta.ids
        return True

    async def drain(self) -> bool:
        return True


#: Makes a delta of the data of events that came together; None while there is nothing to tell.
DecodeDelta = Callable[[list[bytes]], TokenDelta | None]


class TokenStreamReader:
    """One stream. `over` once its last delta was told, or nobody wants any more."""

    __slots__ = ("_decode", "_feed", "_push", "_sink", "finished")

    def __init__(self, decode: DecodeDelta, sink: TokenSink) -> None:
        self._feed = SseDataReader().feed
        self._decode = decode
        self._push = sink.push
        self._sink = sink
        self.finished = False

    def push(self, data: bytes) -> bool:
        """Runs for every token. Whether more may follow at once."""
        payloads = self._feed(data)
        delta = self._decode(payloads) if payloads else None
        if delta is None:
            return True
        more = self._push(delta)
        if delta.finish is None:
            return more
        self.finished = True
        return False

    async def drain(self) -> bool:
        """Whether there is to be more, once there is room for it."""
        if not self.finished:
            self.finished = not await self._sink.drain()
        return not self.finished
