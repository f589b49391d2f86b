"""The number of calls per token in the engine's own process: counted, not timed.

The thread that makes them needs the interpreter lock at the same time as the generation loop. All
code between the library's callback and the socket is real, and runs in one call.
"""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest
from batching_manager import Manager, engine, output
from step_fixture import served
from token_fixture import counting

from dovetail.engines.engine import EngineRequest, TokenDelta

PYTHON_CALLS = 9  # per token; 6 when this was written
ALL_CALLS = 15  # including calls of C functions; 9 when this was written
STEPS = 20


class SignallingManager(Manager):
    """Signals when it has a request."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = asyncio.Event()

    def add_request(self, input_ids: list[int], request_id: str, **more: Any) -> str | None:
        self.requested.set()
        return super().add_request(input_ids, request_id, **more)


class ClientSink:
    """The sink of the socket's client."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.received = asyncio.Event()

    def push(self, delta: TokenDelta) -> bool:
        self.ids += delta.ids
        self.received.set()
        return True

    async def drain(self) -> bool:
        return True

    async def until(self, count: int) -> None:
        while len(self.ids) < count:
            self.received.clear()
            await self.received.wait()


@pytest.mark.parametrize("before", [1, 1_000])
def test_calls_per_token_from_the_library_to_the_socket(tmp_path: Path, before: int) -> None:
    output_ids = [4] * before
    manager = SignallingManager()

    async def check(sink: ClientSink) -> None:
        await manager.requested.wait()
        manager.hand_over(output(*output_ids))
        await sink.until(before)
        with counting() as seen:
            for _ in range(STEPS):
                output_ids.append(5)
                manager.hand_over(output(*output_ids))
        python = sum(count for name, count in seen.items() if not name.startswith(" "))
        listed = "\n".join(f"{count / STEPS:5.1f} {name}" for name, count in seen.items())
        assert STEPS <= python <= PYTHON_CALLS * STEPS, listed
        assert seen.total() <= ALL_CALLS * STEPS, listed
        manager.hand_over(output(*output_ids, 9, finished=True))
        await sink.until(len(output_ids) + 1)
        assert sink.ids == [*output_ids, 9]

    async def main() -> None:
        sink = ClientSink()
        request = EngineRequest("r", array("I", [1, 2]), 5_000, stop_ids=frozenset({9}))
        async with asyncio.timeout(60), served(engine(manager), tmp_path) as client:
            await asyncio.gather(client.generate(request, sink), check(sink))

    asyncio.run(main())
