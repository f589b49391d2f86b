"""An engine's deltas for whoever would rather ask for them one by one."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from dovetail.engines.engine import EngineRequest, Listener, TokenDelta


class Speaks(Protocol):
    """What an engine, or a part of one, does."""

    async def generate(self, request: EngineRequest, listener: Listener) -> None: ...


class _Desk:
    """A listener with room for one delta."""

    __slots__ = ("_asked", "_delta", "_told")

    def __init__(self) -> None:
        self._delta: TokenDelta | None = None
        self._told = asyncio.Event()
        self._asked = asyncio.Event()

    def hear(self, delta: TokenDelta) -> bool:
        self._delta = delta
        self._asked.clear()
        self._told.set()
        return False

    async def wait(self) -> bool:
        await self._asked.wait()
        return True

    def no_more(self, generation: "asyncio.Task[None]") -> None:
        self._told.set()

    async def fetch(self) -> TokenDelta | None:
        """The next delta; None where there is no other."""
        self._asked.set()
        await self._told.wait()
        self._told.clear()
        delta, self._delta = self._delta, None
        return delta


async def pulled(engine: Speaks, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
    """The deltas of a generation, none before it is asked for. Closing it cancels the rest."""
    desk = _Desk()
    generation = asyncio.create_task(engine.generate(request, desk))
    generation.add_done_callback(desk.no_more)
    try:
        while (delta := await desk.fetch()) is not None:
            yield delta
        await generation
    finally:
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)


async def whole(engine: Speaks, request: EngineRequest) -> list[int]:
    """All ids of a generation."""
    heard = _Heard()
    await engine.generate(request, heard)
    return heard.ids


class _Heard:
    """A listener that keeps the ids."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: list[int] = []

    def hear(self, delta: TokenDelta) -> bool:
        self.ids += delta.ids
        return True

    async def wait(self) -> bool:
        return True
