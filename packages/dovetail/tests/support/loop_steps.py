"""Measure how long the event loop is occupied, in CPU time of its thread."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection, as the server does when it starts.

    Other tests of the process leave so many that collecting them takes a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def longest_step(stop: asyncio.Event) -> float:
    """Measure the longest CPU time of the event loop's thread without a pause."""
    longest, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest
