"""Consume an engine's deltas: as an iterator, as a list of ids, or from a server's event stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.net.client_connection import SseDataReader


class TokenGenerator(Protocol):
    """The `generate` method of an engine."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None: ...


class _SingleDeltaSink:
    """A sink with room for one delta."""

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
    """The deltas of a generation, none before it is requested. Closing it cancels the rest."""
    sink = _SingleDeltaSink()
    generation = asyncio.create_task(engine.generate(request, sink))
    generation.add_done_callback(sink.close)
    try:
        while (delta := await sink.fetch()) is not None:
            yield delta
        await generation
    finally:
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)


async def collect_token_ids(engine: TokenGenerator, request: EngineRequest) -> list[int]:
    """All ids of a generation."""
    sink = _CollectingIdSink()
    await engine.generate(request, sink)
    return sink.ids


class _CollectingIdSink:
    """A sink that collects the ids."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[int] = []

    def push(self, delta: TokenDelta) -> bool:
        self.ids += delta.ids
        return True

    async def drain(self) -> bool:
        return True


#: Creates a delta from the data of events that arrived together; None if they carry no tokens.
DecodeDelta = Callable[[list[bytes]], TokenDelta | None]


class TokenStreamReader:
    """One event stream. `finished` after its last delta, or when the sink wants no more."""

    __slots__ = ("_decode", "_feed", "_push", "_sink", "finished")

    def __init__(self, decode: DecodeDelta, sink: TokenSink) -> None:
        self._feed = SseDataReader().feed
        self._decode = decode
        self._push = sink.push
        self._sink = sink
        self.finished = False

    def push(self, data: bytes) -> bool:
        """Runs for every token. Returns whether more may follow at once."""
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
        """Wait for room in the sink. Returns whether more is wanted."""
        if not self.finished:
            self.finished = not await self._sink.drain()
        return not self.finished
