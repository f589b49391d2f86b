"""Streams of one answer: held back at the start, and several at once."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")


async def signal_slow_start(
    stream: AsyncGenerator[ItemT], seconds: float
) -> AsyncGenerator[ItemT | None]:
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


async def run_all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs them all. The first that fails ends the others, and its error is raised."""
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks = [asyncio.create_task(part) for part in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
