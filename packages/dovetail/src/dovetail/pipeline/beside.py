"""Work that would hold the loop which serves everybody, done in a thread beside it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WORTH_A_THREAD = 1 << 15  # characters, or tokens: 2 to 50 ms of work
HUGE = 1 << 20  # a second or more
# Few: before it gets its turn, the loop may have to wait 5 ms for each. What is huge goes on when
# its client has hung up, and must not hold up what is usual.
_threads = ThreadPoolExecutor(2, "dovetail-beside")
_thread_of_huge = ThreadPoolExecutor(1, "dovetail-beside-huge")


async def beside(size: int, work: Callable[[], T]) -> T:
    """What the work gives. If it reads very much, and `size` says how much, a thread does it."""
    if size < WORTH_A_THREAD:
        return work()
    threads = _threads if size < HUGE else _thread_of_huge
    return await asyncio.get_running_loop().run_in_executor(threads, work)
