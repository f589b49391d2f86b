"""All streams of an engine share one connection, and do not affect each other."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_fixture import TOKENIZER, deltas, engine, request
from step_fixture import CollectingSink, SteppedEngine, served, served_at

from dovetail.engines.engine import TokenDelta
from dovetail.engines.steps import client as step_client
from dovetail.engines.steps.client import StepClient, connect
from dovetail.engines.steps.framing import encode_frame
from dovetail.engines.steps.messages import Hello, Step, join_deltas
from dovetail.engines.token_stream import iter_deltas
from dovetail_model import (
    ContextOverflow,
    EngineError,
    EngineUnavailable,
    Overloaded,
    Sampling,
)

SCRIPT = "[{text: 'a longer text with <think>controls</think>', chunks: 3}]"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_the_deltas_are_those_of_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        scripted = engine(SCRIPT)
        expected = await deltas(scripted, request())
        async with served(engine(SCRIPT), tmp_path) as client:
            found = [delta async for delta in iter_deltas(client, request())]
        assert join_deltas(found) == join_deltas(expected)  # some may have arrived together
        assert found[-1].finish == "stop"

    run(test())


def test_a_step_of_all_streams_is_one_message(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            sinks = [CollectingSink() for _ in range(64)]
            streams = [asyncio.create_task(client.generate(request(), one)) for one in sinks]
            await stepped.wait_for(64)
            for token in range(20):
                stepped.step(token, last=token == 19)
                await asyncio.sleep(0.005)
            await asyncio.gather(*streams)
            assert [one.ids for one in sinks] == [list(range(20))] * 64
            assert client.steps == 20

    run(test())


def test_a_cancelled_stream_is_aborted_in_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            other = asyncio.create_task(client.generate(request(id="other"), CollectingSink()))
            ended = asyncio.create_task(client.generate(request(id="ended"), CollectingSink()))
            await stepped.wait_for(2)
            ended.cancel()
            await stepped.wait_for(1)
            assert stepped.aborted == ["ended"]
            stepped.step(1, last=True)
            await other

    run(test())


@pytest.mark.parametrize("supported", [True, False])
def test_retention_is_requested_from_engines_that_support_it(
    tmp_path: Path, supported: bool
) -> None:
    class Retaining(SteppedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.retained: list[tuple[str, float]] = []

        def retain(self, request: str, seconds: float) -> None:
            self.retained.append((request, seconds))

    async def test() -> None:
        stepped = Retaining()
        async with served(stepped, tmp_path) as client:
            description = client.description
            client.description = msgspec.structs.replace(description, retention=supported)
            client.retain("one", 2.5)
            await client.health()  # has been handled after it
        assert stepped.retained == ([("one", 2.5)] if supported else [])

    run(test())


def test_a_sink_that_ends_its_stream_aborts_it(tmp_path: Path) -> None:
    class EndingSink(CollectingSink):
        async def drain(self) -> bool:
            return False

    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            stream = asyncio.create_task(client.generate(request(), EndingSink(full=1)))
            await stepped.wait_for(1)
            stepped.step(1)
            await stream
            await stepped.wait_for(0)
            assert len(stepped.aborted) == 1

    run(test())


def test_a_client_that_disappears_aborts_all_its_streams(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            streams = [
                asyncio.create_task(client.generate(request(), CollectingSink())) for _ in range(3)
            ]
            await stepped.wait_for(3)
            client.close("stopped")
            await stepped.wait_for(0)
            results = await asyncio.gather(*streams, return_exceptions=True)
        assert [str(one) for one in results] == ["stopped"] * 3
        assert all(isinstance(one, EngineUnavailable) for one in results)

    run(test())


def test_a_slow_client_neither_loses_tokens_nor_stops_others(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            slow, fast = CollectingSink(full=15), CollectingSink()
            streams = [asyncio.create_task(client.generate(request(), one)) for one in (slow, fast)]
            await stepped.wait_for(2)
            for token in range(30):
                stepped.step(token, last=token == 29)
            await asyncio.sleep(0.005)
            assert fast.ids == list(range(30))
            assert len(slow.ids) < 10
            await asyncio.gather(*streams)
        assert slow.ids == list(range(30))
        assert slow.drains == 1  # what was held is pushed at once

    run(test())


def test_steps_that_arrive_together_are_one_delta_of_each_stream(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            sinks = [CollectingSink(), CollectingSink()]
            streams = [asyncio.create_task(client.generate(request(), one)) for one in sinks]
            await stepped.wait_for(2)
            steps = [Step([1, 2], [TokenDelta([7], (), None, 5)] * 2), Step([2], [TokenDelta([8])])]
            steps += [Step([1, 2], [TokenDelta([9], (), "stop")] * 2)]
            client.data_received(b"".join(map(encode_frame, steps)))
            await asyncio.gather(*streams)
            assert sinks[0].deltas == [TokenDelta([7, 9], (), "stop", 5)]
            assert sinks[1].deltas == [TokenDelta([7, 8, 9], (), "stop", 5)]
            assert client.steps == 3

    run(test())


def test_a_failing_sink_ends_only_its_own_stream(tmp_path: Path) -> None:
    class BrokenSink(CollectingSink):
        def push(self, delta: TokenDelta) -> bool:
            raise RuntimeError("broken")

    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            other = CollectingSink()
            broken = asyncio.create_task(client.generate(request(), BrokenSink()))
            stream = asyncio.create_task(client.generate(request(), other))
            await stepped.wait_for(2)
            stepped.step(1)
            with pytest.raises(RuntimeError, match="broken"):
                await broken
            await stepped.wait_for(1)
            stepped.step(2, last=True)
            await stream
            assert other.ids == [1, 2]

    run(test())


@pytest.mark.parametrize(
    "error",
    [
        ContextOverflow("prompt is too long", param="messages"),
        Overloaded("full", retry_after=3.0),
        EngineError("broken"),
        ValueError("unexpected"),
    ],
)
def test_errors_keep_their_kind(tmp_path: Path, error: Exception) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            stream = asyncio.create_task(client.generate(request(id="r"), CollectingSink()))
            await stepped.wait_for(1)
            stepped.fail("r", error)
            with pytest.raises(type(error) if isinstance(error, EngineError) else Exception) as got:
                await stream
        if isinstance(error, ValueError):
            assert isinstance(got.value, EngineError)
            assert str(got.value) == "ValueError: unexpected"
        else:
            assert type(got.value) is type(error)
            assert vars(got.value) == vars(error)

    run(test())


def test_tokens_that_arrived_before_an_error_are_delivered(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            sink = CollectingSink(full=1)
            stream = asyncio.create_task(client.generate(request(id="r"), sink))
            await stepped.wait_for(1)
            for token in range(5):
                stepped.step(token)
            stepped.fail("r", EngineError("broken"))
            with pytest.raises(EngineError, match="broken"):
                await stream
            assert sink.ids == list(range(5))

    run(test())


def test_logprobs_have_the_texts_of_their_tokens(tmp_path: Path) -> None:
    async def test() -> None:
        wanted = request(sampling=Sampling(logprobs=1))
        expected = await deltas(engine(SCRIPT), wanted)
        async with served(engine(SCRIPT), tmp_path, TOKENIZER) as client:
            found = [delta async for delta in iter_deltas(client, wanted)]
        assert join_deltas(found).logprobs == join_deltas(expected).logprobs
        assert any(one.logprobs for one in found)

    run(test())


def test_the_description_and_the_health_arrive(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            assert client.description.to_capabilities() == replace(stepped.capabilities)
            state = await client.health()
            assert state.ready
            assert state.facts == {"version": "1", "running": 0}
            client.close("gone")
            assert (await client.health()).detail == "gone"

    run(test())


def test_a_wrong_key_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    async def test() -> None:
        async with served_at(SteppedEngine(), tmp_path) as address:
            with pytest.raises(EngineError, match="set --engine-api-key"):
                await connect(replace(address, key="wrong"), "vLLM")

    run(test())


def test_another_version_of_the_protocol_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with served_at(SteppedEngine(), tmp_path) as address:
            monkeypatch.setattr(step_client, "PROTOCOL_VERSION", 99)
            with pytest.raises(EngineError, match=r"version 99.*install the same version"):
                await connect(address, "vLLM")

    run(test())


def test_nothing_is_generated_without_the_key(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served_at(stepped, tmp_path) as address:
            for data in (
                b"GET / HTTP/1.1\r\n\r\n",
                encode_frame(Hello(1, "no")) * 3,
                b"\x01\0\0\0\xc1",
            ):
                reader, writer = await asyncio.open_unix_connection(address.path)
                writer.write(data)
                await reader.read()  # until the server closes the connection
                writer.close()
        assert not stepped.requests

    run(test())


def test_an_invalid_frame_of_the_engine_ends_the_streams(tmp_path: Path) -> None:
    async def test() -> None:
        stepped = SteppedEngine()
        async with served(stepped, tmp_path) as client:
            stream = asyncio.create_task(client.generate(request(), CollectingSink()))
            await stepped.wait_for(1)
            assert isinstance(client, StepClient)
            client.data_received(b"\x02\0\0\0\xff\xff")
            with pytest.raises(EngineError, match="invalid frame"):
                await stream
            with pytest.raises(EngineUnavailable):
                await client.generate(request(), CollectingSink())

    run(test())
