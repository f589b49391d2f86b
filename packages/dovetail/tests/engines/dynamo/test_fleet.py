"""The engine `dynamo` with Dynamo's real frontend and mockers: aggregated, disaggregated, killed.

Mockers return random ids, so the tests check counts, finishes and what both sides report.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from dynamo_fleet import BLOCK_TOKENS, REAL, WINDOW, Fleet, running_frontend
from server_process import free_port

from dovetail.engines.dynamo import DynamoEngine, discover
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import Endpoint
from dovetail_model import ContextOverflow, EngineUnavailable
from dovetail_tokenizers import Tokenizer, load_tokenizer

pytestmark = REAL

RECEIVED = "dynamo_frontend_inflight_requests"
MIGRATED = "dynamo_frontend_model_migration_total"
CANCELLED = "dynamo_frontend_model_cancellation_total"
#: Slow enough that a worker can start and another be killed while a stream runs.
SLOW = ("--speedup-ratio", "0.4")
FAST = ("--speedup-ratio", "20")
Kill = Callable[[], None]


@pytest.fixture(scope="module")
def aggregated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_frontend(tmp_path_factory.mktemp("aggregated")) as fleet:
        fleet.start_mocker(*FAST)
        fleet.start_mocker(*FAST)
        fleet.await_workers(2)
        yield fleet


def make_request(first: int, length: int, max_tokens: int) -> EngineRequest:
    prompt = array("I", range(first, first + length))
    return EngineRequest(f"r{first}", prompt, max_tokens, session=f"s{first}")


async def started(fleet: Fleet) -> DynamoEngine:
    endpoint = Endpoint.parse(fleet.url)
    engine = DynamoEngine(endpoint, await discover(endpoint), tokenizer(fleet))
    await engine.start()
    return engine


def tokenizer(fleet: Fleet) -> Tokenizer:
    return load_tokenizer(fleet.model)


async def collect(engine: DynamoEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]


def ids(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_aggregated(aggregated: Fleet) -> None:
    async def main() -> None:
        engine = await started(aggregated)
        assert engine.capabilities.context_length == WINDOW
        assert engine.capabilities.constraints == ()  # mockers enforce none
        assert not engine.capabilities.logprobs
        assert engine.capabilities.cached_tokens
        state = await engine.health()
        assert state.ready
        assert state.facts is not None
        assert state.facts["workers"] == {"backend": 2}
        request = make_request(1000, 10 * BLOCK_TOKENS + 1, 300)
        first, again = [await collect(engine, request) for _ in range(2)]
        assert len(ids(first)) == len(ids(again)) == 300
        assert (first[-1].finish, first[-1].exact, first[-1].cached) == ("length", True, 0)
        # the router sends the same prompt to the same worker
        assert again[-1].cached == 10 * BLOCK_TOKENS
        await engine.stop()
        assert not (await engine.health()).ready

    asyncio.run(main())


def test_prompt_that_does_not_fit_is_not_sent(aggregated: Fleet) -> None:
    """The frontend would fail with an internal error after status 200."""

    async def main() -> None:
        engine = await started(aggregated)
        with pytest.raises(ContextOverflow, match=f"{WINDOW} tokens > {WINDOW - 1} maximum"):
            await collect(engine, make_request(1000, WINDOW, 5))
        last = await collect(engine, make_request(1000, WINDOW - 1, 5))
        assert (len(ids(last)), last[-1].finish) == (1, "length")
        await engine.stop()

    asyncio.run(main())


def test_disconnect_cancels_the_request(aggregated: Fleet) -> None:
    async def main() -> None:
        engine = await started(aggregated)
        before = aggregated.metric(CANCELLED)
        async with aclosing(iter_deltas(engine, make_request(5000, 20, 8000))) as deltas:
            await anext(deltas)
        while aggregated.metric(CANCELLED) == before:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        assert aggregated.metric(CANCELLED) == before + 1
        await engine.stop()

    asyncio.run(main())


def test_disaggregated(tmp_path: Path) -> None:
    with running_frontend(tmp_path) as fleet:
        fleet.start_mocker(
            "--disaggregation-mode", "prefill", "--bootstrap-ports", str(free_port()), *FAST
        )
        fleet.start_mocker("--disaggregation-mode", "decode", *FAST)
        fleet.await_workers(2)

        async def main() -> None:
            engine = await started(fleet)
            state = await engine.health()
            assert state.facts is not None
            assert state.facts["workers"] == {"backend": 1, "prefill": 1}
            deltas = await collect(engine, make_request(1000, 10 * BLOCK_TOKENS, 200))
            assert len(ids(deltas)) == 200
            assert (deltas[-1].finish, deltas[-1].exact) == ("length", True)
            await engine.stop()

        asyncio.run(main())


def test_higher_priority_leaves_the_routers_queue_first(tmp_path: Path) -> None:
    """One worker is busy with a long prefill while requests of other priorities arrive."""
    with running_frontend(tmp_path, "--router-queue-threshold", "0.5") as fleet:
        fleet.start_mocker("--speedup-ratio", "0.05", "--max-num-batched-tokens", "1024")
        fleet.await_workers(1)
        finished: list[int] = []

        async def run(engine: DynamoEngine, first: int, priority: int) -> None:
            request = make_request(first, 4000, 1)
            await collect(engine, msgspec.structs.replace(request, priority=priority))
            finished.append(priority)

        async def main() -> None:
            engine = await started(fleet)
            tasks = []
            for number, priority in enumerate((0, -5, 10, 90, 50)):
                tasks.append(asyncio.create_task(run(engine, 10_000 * (number + 1), priority)))
                while fleet.metric(RECEIVED) < number + 1:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            await asyncio.gather(*tasks)
            await engine.stop()

        asyncio.run(main())
        assert finished == [0, 90, 50, 10, -5]


async def stream_with_kill(engine: DynamoEngine, kill: Kill, length: int) -> list[TokenDelta]:
    """Kill a worker after the first tokens. Blocking calls are fine: nothing else runs here."""
    deltas: list[TokenDelta] = []
    async for delta in iter_deltas(engine, make_request(1000, 40, length)):
        deltas.append(delta)
        if len(deltas) == 20:
            kill()
    return deltas


def test_worker_killed_with_migration(tmp_path: Path) -> None:
    """Dynamo continues the stream on a worker that started after it."""
    with running_frontend(tmp_path, "--migration-limit", "3") as fleet:
        first = fleet.start_mocker(*SLOW)
        fleet.await_workers(1)

        def kill() -> None:
            fleet.start_mocker(*FAST)
            fleet.await_workers(2)
            fleet.kill(first)

        async def main() -> None:
            engine = await started(fleet)
            deltas = await stream_with_kill(engine, kill, 4000)
            assert len(ids(deltas)) == 4000
            # Dynamo counts the output before the migration as a part of the prompt
            assert (deltas[-1].finish, deltas[-1].exact) == ("length", True)
            assert fleet.metric(MIGRATED) == 1
            await engine.stop()

        asyncio.run(main())


def test_last_worker_killed_without_migration(tmp_path: Path) -> None:
    """A failure, never a clean end. The engine is not ready until the model has a worker again."""
    with running_frontend(tmp_path) as fleet:
        worker = fleet.start_mocker(*SLOW)
        fleet.await_workers(1)

        async def main() -> None:
            engine = await started(fleet)
            with pytest.raises(EngineUnavailable, match="503"):
                await stream_with_kill(engine, lambda: fleet.kill(worker), 4000)
            state = await engine.health()
            assert (state.ready, state.detail) == (
                False,
                f"the server at {fleet.url} serves no model",
            )
            with pytest.raises(EngineUnavailable):  # 503 at first
                await collect(engine, make_request(1000, 40, 5))
            fleet.await_workers(0)  # the frontend itself still reports "healthy"
            with pytest.raises(EngineUnavailable):  # then 404
                await collect(engine, make_request(1000, 40, 5))
            with pytest.raises(EngineUnavailable, match="serves no model"):
                await engine.start()
            fleet.start_mocker(*FAST)
            fleet.await_workers(1)
            await engine.start()
            assert (await engine.health()).ready
            assert len(ids(await collect(engine, make_request(1000, 40, 5)))) == 5
            await engine.stop()

        asyncio.run(main())
