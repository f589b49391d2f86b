"""The vLLM engine with servers that respond as vLLM does, or fail to."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from completions_fixture import MODEL, Responder, fake_server, scripted_server, status, stream
from scripted_fixture import END, TOKENIZER, ids, request

from dovetail.engines.completions.constraint_probe import PROBES
from dovetail.engines.engine import RemoteModel, TokenEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.discovery import discover
from dovetail.engines.vllm.embedded import create
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.models.weights import ModelUnavailableError, find_tokenizer_files
from dovetail.net.http_client import Endpoint
from dovetail_model import DovetailError, EngineError, EngineUnavailable

REMOTE = RemoteModel(MODEL)
REASONING_END = TOKENIZER.controls["</think>"]


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await check()

    asyncio.run(limited())


def paths(**responses: bytes) -> Responder:
    """Return a server with a response per path; `_` in the names stands for /."""

    async def respond(path: str, body: bytes) -> list[bytes]:
        return [responses.get(path.replace("/", "_"), status(404, b'{"detail":"Not Found"}'))]

    return respond


def listed(*cards: dict[str, Any]) -> bytes:
    return status(200, json.dumps({"object": "list", "data": cards}).encode())


BASE = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 4096}
ALIAS = {**BASE, "id": "alias"}
ADAPTER = {"id": "sql", "root": "/adapters/sql", "parent": "base", "max_model_len": 4096}
VERSION = status(200, b'{"version":"0.32.0"}')


@pytest.mark.parametrize(
    ("responses", "found"),
    [
        (
            {"_v1_models": listed(BASE, ALIAS), "_version": VERSION},
            RemoteModel("base", ("base", "alias"), "/models/base", 4096, "0.32.0"),
        ),
        (
            {"_v1_models": listed(ADAPTER, BASE)},
            RemoteModel("base", ("base",), "/models/base", 4096, adapters=("sql",)),
        ),
        ({"_v1_models": listed({"id": "x", "new": 1})}, RemoteModel("x", ("x",))),
        (
            {"_v1_models": listed({"id": "x"}), "_version": status(200, b"?")},
            RemoteModel("x", ("x",)),
        ),
    ],
)
def test_discovery(responses: dict[str, bytes], found: RemoteModel) -> None:
    async def check() -> None:
        async with fake_server(paths(**responses)) as endpoint:
            assert await discover(endpoint) == found

    run_async(check)


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (status(401, b'{"error":"Unauthorized"}'), EngineError, "--engine-api-key"),
        (status(404, b"no"), EngineError, "the address is wrong"),
        (status(503, b"starting"), EngineUnavailable, "starting"),
        (status(200, b"<html>"), EngineError, "returned an invalid model list"),
        (listed(), EngineUnavailable, "serves no model"),
    ],
)
def test_server_that_is_not_vllm(response: bytes, kind: type[DovetailError], words: str) -> None:
    async def check() -> None:
        async with fake_server(paths(_v1_models=response)) as endpoint:
            with pytest.raises(kind, match=words):
                await discover(endpoint)

    run_async(check)


def test_sglang_is_rejected_with_the_engine_to_use() -> None:
    async def check() -> None:
        models = listed({**BASE, "owned_by": "sglang"})
        async with fake_server(paths(_v1_models=models)) as endpoint:
            with pytest.raises(EngineSetupError, match="is SGLang: use --engine sglang"):
                await discover(endpoint)

    run_async(check)


def test_no_server() -> None:
    async def check() -> None:
        with pytest.raises(EngineUnavailable, match="is vLLM running there"):
            await discover(Endpoint("127.0.0.1", 9))

    run_async(check)


def test_address_is_required() -> None:
    with pytest.raises(EngineSetupError, match="--engine-url"):
        create_engine("vllm", EngineSetup(TOKENIZER))
    setup = EngineSetup(TOKENIZER, endpoint=Endpoint(), remote=REMOTE, options={"speed": 1})
    with pytest.raises(EngineSetupError, match="speed"):
        create(setup)


def test_removed_model() -> None:
    async def check() -> None:
        async with fake_server(paths(_v1_models=listed(BASE))) as endpoint:
            gone: TokenEngine = VllmEngine(endpoint, REMOTE, TOKENIZER)
            with pytest.raises(EngineUnavailable, match=r"does not serve 'org/model'.* base"):
                await gone.start()
            assert not (await gone.health()).ready
            with pytest.raises(EngineUnavailable, match="not running"):
                await anext(iter_deltas(gone, request()))

    run_async(check)


def constrained(*syntaxes: str, after_reasoning: bool = False) -> Responder:
    """Return a server that enforces constraints of these syntaxes.

    With `after_reasoning` it enforces them only after reasoning. Otherwise it generates other text.
    """

    async def respond(path: str, body: bytes) -> list[bytes]:
        if path != "/v1/completions":
            return [listed({"id": MODEL})]
        fields = json.loads(body)
        member, grammar = next(iter(fields["structured_outputs"].items()))
        word = next(w for s, (text, w) in PROBES.items() if text == grammar)
        syntax = next(s for s, (text, _) in PROBES.items() if text == grammar)
        if syntax == "ebnf" and "ebnf" not in syntaxes:
            return [status(400, b'{"error":{"message":"Invalid grammar specification."}}')]
        applies = syntax in syntaxes and (REASONING_END in fields["prompt"] or not after_reasoning)
        output_ids = ids(word if applies else "Well, " + member)
        frame = {"choices": [{"token_ids": [*output_ids, END], "finish_reason": "stop"}]}
        counts = {"prompt_tokens": 5, "completion_tokens": len(output_ids) + 1}
        counted = {
            "choices": [],
            "usage": {**counts, "prompt_tokens_details": {"cached_tokens": 0}},
        }
        return [stream(json.dumps(frame).encode(), json.dumps(counted).encode(), b"[DONE]")]

    return respond


@pytest.mark.parametrize(
    "enforced", [("structural_tag", "ebnf", "json_schema"), ("json_schema",), ()]
)
def test_only_enforced_constraints_are_capabilities(
    enforced: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with fake_server(constrained(*enforced)) as endpoint:
            engine = VllmEngine(endpoint, REMOTE, TOKENIZER)
            assert engine.capabilities.constraints == ()
            await engine.start()
            assert engine.capabilities.constraints == enforced
            assert engine.capabilities.cached_tokens
            facts = (await engine.health()).facts
            assert facts is not None
            assert facts["constraints"] == list(enforced)

    run_async(check)
    assert ("vllm_feature_missing" in caplog.text) == (not enforced)


def test_constraints_enforced_only_after_reasoning(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with fake_server(constrained("structural_tag", after_reasoning=True)) as endpoint:
            engine = VllmEngine(endpoint, REMOTE, TOKENIZER)
            await engine.start()
            assert engine.capabilities.constraints == ("structural_tag",)
            assert engine.capabilities.constrains_after_reasoning

    run_async(check)
    assert "vllm_feature_missing" in caplog.text


def test_server_that_does_not_report_cached_tokens(caplog: pytest.LogCaptureFixture) -> None:
    async def respond(path: str, body: bytes) -> list[bytes]:
        if path != "/v1/completions":
            return [listed({"id": MODEL})]
        return [stream(b'{"choices":[{"token_ids":[1],"finish_reason":"stop"}]}', b"[DONE]")]

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            engine = VllmEngine(endpoint, REMOTE, TOKENIZER)
            await engine.start()
            assert not engine.capabilities.cached_tokens

    run_async(check)
    warned = [vars(record)["fields"]["remedy"] for record in caplog.records]
    assert "start vLLM with --enable-prompt-tokens-details" in warned


def test_options() -> None:
    async def check() -> None:
        async with scripted_server("[{text: hi}]") as (_, endpoint):
            options = VllmOptions(stream_interval=4, probe=False)
            engine = VllmEngine(endpoint, REMOTE, TOKENIZER, context_length=100, options=options)
            await engine.start()
            assert engine.capabilities.constraints == tuple(PROBES)
            assert engine.capabilities.context_length == 100
            deltas = [delta async for delta in iter_deltas(engine, request())]
            assert [id for delta in deltas for id in delta.ids] == [*ids("hi"), END]

    run_async(check)


def test_api_key_is_sent_with_every_request() -> None:
    async def check() -> None:
        async with scripted_server("[{text: hi}]", key="k") as (_, place):
            with pytest.raises(EngineError, match="rejected the API key"):
                await discover(place)
            held = Endpoint(place.host, place.port, headers={"authorization": "Bearer k"})
            engine = VllmEngine(held, await discover(held), TOKENIZER)
            await engine.start()
            assert (await engine.health()).ready

    run_async(check)


def model_folder(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "tokenizer.json").write_text("{}")
    return place


def test_tokenizer_files_are_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = model_folder(tmp_path / "hub" / "models--org--name" / "snapshots" / "1")
    here = model_folder(tmp_path / "here")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_tokenizer_files(RemoteModel("m", root=str(here))) == here
    assert find_tokenizer_files(RemoteModel("m", root="org/name")) == cached
    assert find_tokenizer_files(RemoteModel("org/name")) == cached
    assert find_tokenizer_files(RemoteModel("org/name", root="/on/another/machine")) == cached
    assert find_tokenizer_files(RemoteModel("m", root=str(here)), "org/name") == cached
    with pytest.raises(ModelUnavailableError, match=r"--tokenizer .*empty has no tokenizer"):
        find_tokenizer_files(RemoteModel("m"), str(empty))


def test_missing_tokenizer_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteModel("my-model", root="/on/another/machine")
    with pytest.raises(
        ModelUnavailableError, match=r"Pass --tokenizer with a folder .*/on/another/machine"
    ):
        find_tokenizer_files(remote)


CACHE_CONFIG = (
    b"# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    b'vllm:cache_config_info{block_size="16",engine="0",gpu_memory_utilization="0.9",'
    b'num_gpu_blocks="%d",sliding_window="None"} 1.0\n'
)


@pytest.mark.parametrize(
    ("metrics", "tokens"),
    [
        (status(200, CACHE_CONFIG % 128), 2048),
        (status(200, CACHE_CONFIG % 128 + (CACHE_CONFIG % 64).replace(b'"0"', b'"1"')), 3072),
        (status(200, b"vllm:num_requests_running 0.0\n"), None),
        (status(200, CACHE_CONFIG.replace(b"%d", b"None")), None),
        (status(404, b""), None),
    ],
)
def test_capacity_of_the_kv_cache_is_read_from_the_metrics(
    metrics: bytes, tokens: int | None
) -> None:
    async def check() -> None:
        responses = {"_v1_models": listed({"id": MODEL}), "_metrics": metrics}
        async with fake_server(paths(**responses)) as endpoint:
            engine = VllmEngine(endpoint, REMOTE, TOKENIZER, options=VllmOptions(probe=False))
            await engine.start()
            assert engine.capabilities.kv_tokens == tokens

    run_async(check)
