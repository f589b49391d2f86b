"""Consume an engine's deltas: as an iterator, as a list of ids, or from an SSE stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenSink
from dovetail.net.client_connection import SseDataReader


class TokenGenerator(Protocol):
    """An object with the `generate` method of an engine."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None: ...


class _SingleDeltaSink:
    """A sink that holds one delta at a time."""

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
        """Return the next delta; None at the end of the generation."""
        self._requested.set()
        await self._available.wait()
        self._available.clear()
        delta, self._delta = self._delta, None
        return delta


async def iter_deltas(engine: TokenGenerator, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
    """Iterate over the deltas of a generation, with backpressure.

    Closing it cancels the generation.
    """
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
    """Run a generation and return all its ids."""
    sink = _CollectingIdSink()
    await engine.generate(request, sink)
    return sink.ids


class _CollectingIdSink:
    """A sink that collects ids."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[int] = []

    def push(self, delta: TokenDelta) -> bool:
        self.ids += delta.ids
        return True

    async def drain(self) -> bool:
        return True


#: Creates a delta from the data of events that arrived together; None if they have no tokens.
DecodeDelta = Callable[[list[bytes]], TokenDelta | None]


class TokenStreamReader:
    """Reads one event stream and pushes its deltas to a sink.

    `finished` is True after the last delta, or when the sink has ended the generation.
    """

    __slots__ = ("_decode", "_feed", "_push", "_sink", "finished")

    def __init__(self, decode: DecodeDelta, sink: TokenSink) -> None:
        self._feed = SseDataReader().feed
        self._decode = decode
        self._push = sink.push
        self._sink = sink
        self.finished = False

    def push(self, data: bytes) -> bool:
        """Process received bytes.

        Return False if the caller must await `drain` first. Runs per token.
        """
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
        """Wait until the sink has room. Return False if the stream is finished."""
        if not self.finished:
            self.finished = not await self._sink.drain()
        return not self.finished
