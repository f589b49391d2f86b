"""Work that would hold the loop which serves everybody, done in a thread beside it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MIN_OFFLOAD_SIZE = 1 << 15  # characters, or tokens: 2 to 50 ms of work
MIN_HUGE_SIZE = 1 << 20  # a second or more
# Few: before it gets its turn, the loop may have to wait 5 ms for each. What is huge goes on when
# its client has hung up, and must not hold up what is usual.
_executor = ThreadPoolExecutor(2, "dovetail-beside")
_huge_executor = ThreadPoolExecutor(1, "dovetail-beside-huge")


async def run_in_thread(size: int, work: Callable[[], T]) -> T:
    """What the work gives. If it reads very much, and `size` says how much, a thread does it."""
    if size < MIN_OFFLOAD_SIZE:
        return work()
    threads = _executor if size < MIN_HUGE_SIZE else _huge_executor
    return await asyncio.get_running_loop().run_in_executor(threads, work)
