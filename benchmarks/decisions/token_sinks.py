"""What does it cost to forward one token: pushed to sinks, and pulled through async generators?

`python -m benchmarks.decisions.token_sinks`. A token arrives in a callback of the event loop and
passes three stages (engine, pipeline, response) that only forward it. Pulled, the callback puts it
into a queue, and a task iterates over a chain of three async generators. Each token arrives in its
own iteration of the event loop, whose cost is subtracted.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

import uvloop

from benchmarks.decisions.transport import Write, measure_writes, print_table
from dovetail.engines.engine import TokenDelta

DELTA = TokenDelta([1])
TOKENS = 20_000
STAGES = 3


class Sink(Protocol):
    """The part of `TokenSink` that runs for each token."""

    def push(self, delta: TokenDelta) -> bool: ...


class Response:
    """The last stage, which counts tokens."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def push(self, delta: TokenDelta) -> bool:
        self.count += 1
        return True


class Stage:
    """A stage that pushes to the next one."""

    __slots__ = ("_push",)

    def __init__(self, sink: Sink) -> None:
        self._push = sink.push

    def push(self, delta: TokenDelta) -> bool:
        return self._push(delta)


async def turn(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def pushed(response: Response) -> Write:
    sink: Sink = response
    for _ in range(STAGES - 1):
        sink = Stage(sink)

    async def write(count: int) -> None:
        for _ in range(count):
            sink.push(DELTA)
            await asyncio.sleep(0)

    return write


def pulled(deltas: "asyncio.Queue[TokenDelta]") -> Write:
    async def write(count: int) -> None:
        for _ in range(count):
            deltas.put_nowait(DELTA)
            await asyncio.sleep(0)

    return write


async def from_queue(deltas: "asyncio.Queue[TokenDelta]") -> AsyncGenerator[TokenDelta]:
    while True:
        yield await deltas.get()


async def pass_on(source: AsyncGenerator[TokenDelta]) -> AsyncGenerator[TokenDelta]:
    async for delta in source:
        yield delta


async def consume(source: AsyncGenerator[TokenDelta], response: Response) -> None:
    async for delta in source:
        response.push(delta)


async def main(count: int = TOKENS) -> None:
    deltas: asyncio.Queue[TokenDelta] = asyncio.Queue()
    source = from_queue(deltas)
    for _ in range(STAGES - 1):
        source = pass_on(source)
    consumer = asyncio.create_task(consume(source, Response()))
    ways = {
        "turn": turn,
        "queue, task, generators": pulled(deltas),
        "sinks": pushed(Response()),
    }
    found = await measure_writes(ways, count)
    us, calls = found.pop("turn")
    print_table({name: (one - us, more - calls) for name, (one, more) in found.items()}, "token")
    consumer.cancel()


if __name__ == "__main__":
    uvloop.run(main())
