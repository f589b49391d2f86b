"""A transport for measurements of writes: it counts the bytes and discards them."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from types import FrameType

from benchmarks.measure import quiet

Write = Callable[[int], Awaitable[None]]
ROUNDS = 7


class CountingTransport(asyncio.Transport):
    """A transport that never blocks and never closes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...


async def measure_writes(ways: Mapping[str, Write], count: int) -> dict[str, tuple[float, float]]:
    """Return microseconds of CPU time and Python calls per write, the best of several rounds."""
    spent = dict.fromkeys(ways, float("inf"))
    with quiet():
        for _ in range(ROUNDS):
            for name, write in ways.items():
                begun = time.process_time_ns()
                await write(count)
                spent[name] = min(spent[name], (time.process_time_ns() - begun) / 1000 / count)
    return {name: (spent[name], await _count_calls(write)) for name, write in ways.items()}


async def _count_calls(write: Write, count: int = 100) -> float:
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        await write(count)
    finally:
        sys.setprofile(None)
    return (calls - 1) / count


def print_table(found: dict[str, tuple[float, float]], unit: str) -> None:
    best = min(us for us, _ in found.values())
    for name, (us, calls) in found.items():
        print(f"{name:>28}: {us:6.2f} us, {calls:5.1f} calls per {unit}, {us / best:5.1f} times")
