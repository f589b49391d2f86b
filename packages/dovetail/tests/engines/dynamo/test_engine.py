"""The engine `dynamo` with recorded responses of the real frontend."""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from completions_fixture import fake_server, status
from dynamo_recording import NAME, PROMPT_TOKENS, RESPONSES, RecordedFrontend, recorded

from dovetail.engines.dynamo import DynamoEngine, DynamoOptions, create, discover
from dovetail.engines.engine import EngineRequest, RemoteModel, TokenDelta
from dovetail.engines.registry import EngineSetup, EngineSetupError
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.discovery import discover as discover_vllm
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    Overloaded,
    Sampling,
)
from dovetail_tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer()
PROMPT = array("I", range(1000, 1000 + PROMPT_TOKENS))
REMOTE = RemoteModel(NAME, (NAME,), context_length=8192)
UNPROBED = DynamoOptions(probe=False)


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await check()

    asyncio.run(limited())


def make_request(max_tokens: int = 5, **more: Any) -> EngineRequest:
    return EngineRequest("r", PROMPT, max_tokens, **more)


async def started(endpoint: Endpoint) -> DynamoEngine:
    engine = DynamoEngine(endpoint, REMOTE, TOKENIZER, options=UNPROBED)
    await engine.start()
    return engine


async def collect(engine: DynamoEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]


def generate(name: str, request: EngineRequest) -> list[TokenDelta]:
    """Return the deltas of a recorded response."""
    found: list[TokenDelta] = []

    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = await started(endpoint)
            frontend.names["/v1/completions"] = name
            found.extend(await collect(engine, request))

    run_async(check)
    return found


def ids(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_discovery_of_the_frontend() -> None:
    async def check() -> None:
        async with recorded(RecordedFrontend()) as endpoint:
            assert await discover(endpoint) == REMOTE
            with pytest.raises(EngineSetupError, match="is Dynamo: use --engine dynamo"):
                await discover_vllm(endpoint)

    run_async(check)


def test_other_models_can_be_selected() -> None:
    cards = [{"id": name, "owned_by": "nvidia", "context_window": 9} for name in ("a", "b")]

    async def respond(path: str, body: bytes) -> list[bytes]:
        if path == "/v1/models":
            return [status(200, json_list(*cards))]
        return [RESPONSES["health"].to_bytes()]

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            # the context length of the second model may differ
            assert await discover(endpoint) == RemoteModel("a", ("a",), adapters=("b",))

    run_async(check)


def json_list(*cards: dict[str, Any]) -> bytes:
    return json.dumps({"object": "list", "data": cards}).encode()


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ("vllm", "is vLLM: use --engine vllm"),
        ("sglang", "is SGLang: use --engine sglang"),
        ("library", "is not Dynamo's frontend: use --engine openai"),
        ("nvidia", "is not Dynamo's frontend: use --engine openai"),
    ],
)
def test_other_servers_are_rejected_by_name(owner: str, message: str) -> None:
    async def respond(path: str, body: bytes) -> list[bytes]:
        if path == "/v1/models":
            return [status(200, json_list({"id": "m", "owned_by": owner}))]
        return [status(200, b'{"status":"ok"}')]

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            with pytest.raises(EngineSetupError, match=message):
                await discover(endpoint)

    run_async(check)


def test_address_is_required() -> None:
    with pytest.raises(EngineSetupError, match="set --engine-url URL"):
        create(EngineSetup(TOKENIZER))


def test_ids_are_exact_and_cached_tokens_reported() -> None:
    deltas = generate("plain", make_request())
    assert len(ids(deltas)) == 5
    assert (deltas[-1].finish, deltas[-1].exact) == ("length", True)
    assert [delta.cached for delta in deltas][-1] == 0


def test_stop_token_and_logprobs() -> None:
    deltas = generate("stopped", make_request(30, sampling=Sampling(logprobs=1)))
    assert ids(deltas) == [9707, 11, 1879, 151645]
    assert deltas[-1].finish == "stop"
    assert sum(len(delta.logprobs) for delta in deltas) == 3  # the worker sends none for the last
    assert {one.logprob for delta in deltas for one in delta.logprobs} == {-0.5}


def test_output_that_dynamo_migrated_is_exact() -> None:
    """The frontend counts the output before the migration as a part of the prompt."""
    assert '"prompt_tokens":40,' not in RESPONSES["migrated"].response
    deltas = generate("migrated", make_request(30))
    assert len(ids(deltas)) == 30
    assert (deltas[-1].finish, deltas[-1].exact) == ("length", True)


def test_another_prompt_length_is_not_exact() -> None:
    request = EngineRequest("r", PROMPT[:-1], 5)
    assert generate("plain", request)[-1].exact  # could be a migration after one token
    request = EngineRequest("r", PROMPT + PROMPT, 5)
    assert not generate("plain", request)[-1].exact


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("killed", EngineUnavailable, "503"),
        ("not ready", EngineUnavailable, "not ready to serve requests yet"),
        ("gone", EngineUnavailable, "does not have this model"),
        ("overloaded", Overloaded, "Dynamo is overloaded: Service temporarily overloaded"),
        ("too long", EngineError, "Dynamo failed"),
    ],
)
def test_failures_are_errors(name: str, error: type[DovetailError], message: str) -> None:
    """None of them is a clean end, not even the frame of an error under status 200."""
    with pytest.raises(error, match=message) as caught:
        generate(name, make_request(500))
    # only these make the pool continue the output elsewhere, or wait for a recovery
    assert isinstance(caught.value, EngineUnavailable) == (error is EngineUnavailable)


def test_request_that_has_begun_is_not_sent_again() -> None:
    """Only the caller knows which tokens have arrived, and continues after them."""

    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = await started(endpoint)
            before = len(frontend.requests)
            frontend.queue = ["killed"]
            with pytest.raises(EngineUnavailable):
                await collect(engine, make_request(500))
            assert len(frontend.requests) == before + 1

    run_async(check)


def test_request_for_a_lost_worker_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.engines.dynamo.engine.RETRY_DELAYS_SECONDS", (0.0, 0.0))

    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = await started(endpoint)
            frontend.queue = ["not ready", "not ready"]
            assert len(ids(await collect(engine, make_request()))) == 5
            frontend.queue = ["not ready"] * 3
            with pytest.raises(EngineUnavailable):
                await collect(engine, make_request())
            assert frontend.queue == []

    run_async(check)


def test_engine_is_not_ready_without_workers_and_ready_again() -> None:
    """`/health` of the frontend reports "healthy" in both cases."""

    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = await started(endpoint)
            state = await engine.health()
            assert state.ready
            assert state.facts is not None
            assert state.facts["workers"] == {"backend": 1}
            frontend.names |= {"/v1/models": "no models", "/health": "health without workers"}
            assert '"healthy"' in RESPONSES["health without workers"].response
            state = await engine.health()
            assert not state.ready
            assert "serves no model" in state.detail
            with pytest.raises(EngineUnavailable, match="serves no model"):
                await engine.start()
            frontend.names |= {"/v1/models": "models", "/health": "health"}
            before = len(frontend.requests)
            await engine.start()
            assert (await engine.health()).ready
            assert len(frontend.requests) == before  # the workers are not probed again

    run_async(check)


def test_fields_that_a_version_rejects_are_reported_at_startup() -> None:
    async def check() -> None:
        async with recorded(RecordedFrontend({"/v1/completions": "unknown field"})) as endpoint:
            with pytest.raises(EngineError, match=r"Dynamo 1\.6 or later is required: .*cache_con"):
                await started(endpoint)

    run_async(check)


def test_unenforced_constraints_and_missing_logprobs_are_not_claimed() -> None:
    """The recorded mocker ignores both."""

    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = DynamoEngine(endpoint, REMOTE, TOKENIZER)
            await engine.start()
            assert engine.capabilities.constraints == ()
            assert not engine.capabilities.logprobs
            assert engine.capabilities.cached_tokens
            assert engine.capabilities.sampling == {"min_tokens", "ignore_eos"}
        guided = [body for body in frontend.requests if body.keys() & {"guided_json"}]
        assert guided[0]["guided_json"] == {"enum": ["dovetail"]}
        assert any("guided_grammar" in body for body in frontend.requests)

    run_async(check)


def test_prompt_that_does_not_fit_is_not_sent() -> None:
    async def check() -> None:
        frontend = RecordedFrontend()
        async with recorded(frontend) as endpoint:
            engine = await started(endpoint)
            before = len(frontend.requests)
            with pytest.raises(ContextOverflow, match="8192 tokens > 8191 maximum"):
                await collect(engine, EngineRequest("r", array("I", [5] * 8192), 5))
            assert len(frontend.requests) == before

    run_async(check)


def test_engine_that_is_not_started_rejects_requests() -> None:
    async def check() -> None:
        async with recorded(RecordedFrontend()) as endpoint:
            engine = await started(endpoint)
            await engine.stop()
            assert not (await engine.health()).ready
            with pytest.raises(EngineUnavailable, match="not running"):
                await collect(engine, make_request())

    run_async(check)
