"""The adapter for SGLang with another implementation of the protocol: Dynamo's mocker.

Each test runs with a recording of the mocker. If DOVETAIL_DYNAMO_PYTHON names an interpreter that
has the mocker, each test also runs with it. The id of a test shows which one was used.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import pytest
from dynamo_environment import CHECK_INTERVAL_SECONDS, MAX_CHECKS, mocking
from sglang_fixture import generate
from sglang_recording import MODEL, REQUESTS, WINDOW, load, make_request, replaying

from dovetail.engines.engine import RemoteModel, TokenDelta
from dovetail.engines.sglang import SglangEngine, discover
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError, EngineUnavailable, InvalidRequest
from dovetail_tokenizers import ByteTokenizer

Serving = Callable[[], AbstractAsyncContextManager[Endpoint]]
CANCELLED = "dynamo_frontend_model_cancellation_total"

SERVER, EXCHANGES = load()
TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def mocker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Start the mocker itself."""
    with mocking(tmp_path_factory.mktemp("dynamo"), MODEL, WINDOW) as endpoint:
        yield endpoint


@pytest.fixture(
    params=[
        pytest.param(1, id=f"a recording of {SERVER} byte by byte"),
        pytest.param(1 << 16, id=f"a recording of {SERVER}"),
        pytest.param(None, id="the mocker", marks=pytest.mark.sglang),
    ]
)
def serving(request: pytest.FixtureRequest) -> Serving:
    """Return the server to use. The block must be entered inside the test's own event loop."""
    if request.param is not None:
        return lambda: replaying(EXCHANGES, request.param)
    endpoint: Endpoint = request.getfixturevalue("mocker")

    @asynccontextmanager
    async def there() -> AsyncIterator[Endpoint]:
        yield endpoint

    return there


async def generate_named(endpoint: Endpoint, name: str) -> list[TokenDelta]:
    engine = SglangEngine(endpoint, TOKENIZER)
    await engine.start()
    try:
        return await generate(engine, REQUESTS[name])
    finally:
        await engine.stop()


def run_request(serving: Serving, name: str) -> list[TokenDelta]:
    async def main() -> list[TokenDelta]:
        async with serving() as endpoint:
            return await generate_named(endpoint, name)

    return asyncio.run(main())


def ids(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


@pytest.mark.parametrize(
    ("name", "count", "finish"),
    [
        ("plain", 5, "length"),
        ("longer", 24, "length"),
        ("hints", 3, "length"),
        ("stops", 1, "stop"),
        ("to the brim", 6, "length"),
    ],
)
def test_outputs(serving: Serving, name: str, count: int, finish: str) -> None:
    deltas = run_request(serving, name)
    assert len(ids(deltas)) == count
    assert [delta.finish for delta in deltas if delta.finish is not None] == [finish]
    assert all(delta.exact for delta in deltas)


def test_ids_match_the_recorded_frames() -> None:
    for exchange in EXCHANGES:
        request = json.loads(bytes(exchange.request))
        name = next(
            (n for n in REQUESTS if request and request["input_ids"] == list(REQUESTS[n].prompt)),
            "",
        )
        if name not in ("plain", "longer", "probabilities"):
            continue
        lines = [line[6:] for line in exchange.response.splitlines() if line.startswith("data: {")]
        sent = [id for line in lines for id in json.loads(line)["output_ids"]]
        assert ids(run_request(lambda: replaying(EXCHANGES, 7), name)) == sent


def test_logprobs(serving: Serving) -> None:
    deltas = run_request(serving, "probabilities")
    logprobs = [one for delta in deltas for one in delta.logprobs]
    assert len(logprobs) == len(ids(deltas)) == 3
    for one in logprobs:
        (likeliest, first), (_, second) = one.top
        assert (likeliest, first) == (one.token, one.logprob)
        assert max(first, second) < 0  # the mocker invents them, in no order


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("too long", EngineUnavailable, "aborted the request: .*limits"),
        ("empty", InvalidRequest, "input_ids cannot be empty"),
    ],
)
def test_failures(serving: Serving, name: str, kind: type[DovetailError], words: str) -> None:
    with pytest.raises(kind, match=words):
        run_request(serving, name)


def test_concurrent_requests(serving: Serving) -> None:
    async def main() -> list[list[TokenDelta]]:
        async with serving() as endpoint:
            return await asyncio.gather(*(generate_named(endpoint, "longer") for _ in range(8)))

    assert [len(ids(deltas)) for deltas in asyncio.run(main())] == [24] * 8


def test_discovered_model(serving: Serving) -> None:
    async def main() -> RemoteModel:
        async with serving() as endpoint:
            return await discover(endpoint)

    assert asyncio.run(main()) == RemoteModel(MODEL, (MODEL,), None, WINDOW)


def test_health(serving: Serving) -> None:
    async def main() -> None:
        async with serving() as endpoint:
            engine = SglangEngine(endpoint, TOKENIZER)
            await engine.start()
            assert (await engine.health()).ready
            assert engine.capabilities.constraints == ()
            await engine.stop()
            assert not (await engine.health()).ready

    asyncio.run(main())


@pytest.mark.sglang
def test_disconnect_is_seen_in_the_mockers_metrics(mocker: Endpoint) -> None:
    async def cancelled() -> float:
        _, page = await fetch(mocker, ClientRequest("GET", "/metrics"))
        lines = [line for line in page.decode().splitlines() if line.startswith(CANCELLED)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def main() -> None:
        engine = SglangEngine(mocker, TOKENIZER)
        await engine.start()
        before = await cancelled()
        async with aclosing(iter_deltas(engine, make_request(5000, 8, WINDOW - 20))) as deltas:
            await anext(deltas)
        for _ in range(MAX_CHECKS):
            if await cancelled() > before:
                break
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        assert await cancelled() == before + 1
        await engine.stop()

    asyncio.run(main())


def test_recording_is_complete() -> None:
    assert [exchange.path for exchange in EXCHANGES].count("/generate") == len(REQUESTS)
