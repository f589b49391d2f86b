"""The number of calls between the engine's socket and the sink: counted, not timed."""

import asyncio
from pathlib import Path

from scripted_fixture import request
from step_fixture import CollectingSink, SteppedEngine, served
from token_fixture import counting

from dovetail.engines.engine import TokenDelta
from dovetail.engines.steps.framing import encode_frame
from dovetail.engines.steps.messages import Step

STREAMS, STEPS = 64, 20
PYTHON_CALLS = 1.5  # per token, with the sink's own; 1.1 when this was written
PYTHON_CALLS_IN_CHILD = 1.5  # 1.1 when this was written


def python_calls(seen: dict[str, int]) -> int:
    return sum(count for name, count in seen.items() if not name.startswith(" "))


def listing(seen: dict[str, int]) -> str:
    return "\n".join(f"{count / STREAMS / STEPS:6.2f} {name}" for name, count in seen.items())


def test_a_token_takes_few_calls_in_both_processes(tmp_path: Path) -> None:
    async def main() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            sinks = [CollectingSink() for _ in range(STREAMS)]
            streams = [asyncio.create_task(client.generate(request(), one)) for one in sinks]
            await stepped.wait_for(STREAMS)
            numbers = list(client._streams)
            message = encode_frame(Step(numbers, [TokenDelta([7])] * STREAMS))
            with counting() as seen:
                for _ in range(STEPS):
                    client.data_received(message)
            assert python_calls(seen) <= PYTHON_CALLS * STREAMS * STEPS, listing(seen)
            with counting() as sent:
                for _ in range(STEPS):
                    for sink in stepped.sinks.values():
                        sink.push(TokenDelta([8]))
            assert python_calls(sent) <= PYTHON_CALLS_IN_CHILD * STREAMS * STEPS, listing(sent)
            stepped.step(9, last=True)
            await asyncio.gather(*streams)
            assert {tuple(one.ids) for one in sinks} == {(7,) * STEPS + (8,) * STEPS + (9,)}
            assert client.steps == STEPS + 1  # the tokens of a pass of the event loop are one step

    asyncio.run(asyncio.wait_for(main(), 30))
