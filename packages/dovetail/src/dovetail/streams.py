"""Streams of one answer: held back at the start, and several as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def held(stream: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T | None]:
    """The stream; None first, if its first item lets itself be waited for."""
    first = asyncio.ensure_future(anext(stream, None))
    try:
        done, _ = await asyncio.wait({first}, timeout=seconds)
        if not done:
            yield None
        item = await first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    if item is None:
        return
    yield item
    async for item in stream:
        yield item


async def merged(streams: list[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Several streams as one, each item with its place. One alone costs nothing extra."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    async with aclosing(_pumped(streams)) as items:
        async for place, item in items:
            yield place, item


async def _pumped(streams: list[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    queue: asyncio.Queue[tuple[int, T | BaseException | None]] = asyncio.Queue(64)

    async def pump(place: int, stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await queue.put((place, item))
            await queue.put((place, None))
        except Exception as error:
            await queue.put((place, error))

    pumps = [asyncio.create_task(pump(at, stream)) for at, stream in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            place, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield place, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
