"""Work that would hold the loop which serves everybody, done in a thread beside it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WORTH_A_THREAD = 1 << 15  # characters, or tokens: 2 to 50 ms of work
# Few: before it gets its turn, the loop may have to wait 5 ms for each.
_threads = ThreadPoolExecutor(2, "dovetail-beside")


async def beside(size: int, work: Callable[[], T]) -> T:
    """What the work gives. If it reads very much, and `size` says how much, a thread does it."""
    if size < WORTH_A_THREAD:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
