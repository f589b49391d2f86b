"""Concurrency helpers: detect slow streams, run coroutines together, run work in threads."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")


async def signal_slow_start(
    stream: AsyncGenerator[ItemT], seconds: float
) -> AsyncGenerator[ItemT | None]:
    """Yield the items of a stream, after a None if the first takes longer than `seconds`."""
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
    """Run coroutines concurrently. The first failure cancels the others and is raised."""
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


T = TypeVar("T")

MIN_OFFLOAD_SIZE = 1 << 15  # characters or tokens: 2 to 50 ms of work
MIN_HUGE_SIZE = 1 << 20  # a second of work or more
# Few threads, because the event loop may wait 5 ms for the GIL per thread. Huge work runs on even
# if its client disconnects, so it has its own thread and does not delay other work.
_executor = ThreadPoolExecutor(2, "dovetail-offload")
_huge_executor = ThreadPoolExecutor(1, "dovetail-offload-huge")
# Request bodies do not wait for prompts.
_body_executor = ThreadPoolExecutor(1, "dovetail-body")
_huge_body_executor = ThreadPoolExecutor(1, "dovetail-body-huge")
MIN_HUGE_BODY_BYTES = 8 << 20
# Grammars have their own threads, too: the largest take seconds.
_constraint_executor = ThreadPoolExecutor(1, "dovetail-constraint")
_huge_constraint_executor = ThreadPoolExecutor(1, "dovetail-constraint-huge")


async def run_in_thread(size: int, work: Callable[[], T], *, min_size: int = MIN_OFFLOAD_SIZE) -> T:
    """Run the work, in a thread if `size` (characters or tokens) is at least `min_size`."""
    if size < min_size:
        return work()
    threads = _executor if size < MIN_HUGE_SIZE else _huge_executor
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def submit_constraint(work: Callable[[], T], *, huge: bool) -> asyncio.Future[T]:
    """Start building a constraint in a thread. Huge ones have their own."""
    threads = _huge_constraint_executor if huge else _constraint_executor
    return asyncio.get_running_loop().run_in_executor(threads, work)


async def run_in_body_thread(body_bytes: int, work: Callable[[], T]) -> T:
    """Run work on a request body in a thread. Very large bodies have their own."""
    threads = _body_executor if body_bytes < MIN_HUGE_BODY_BYTES else _huge_body_executor
    return await asyncio.get_running_loop().run_in_executor(threads, work)
