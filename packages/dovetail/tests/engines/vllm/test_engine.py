"""The vLLM engine against servers that answer as vLLM does, or fail to."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from completions_fixture import MODEL, Responder, fake_server, scripted_server, status, stream
from scripted_fixture import END, TOKENIZER, ids, request

from dovetail.engines.engine import RemoteModel, TokenEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm import VllmEngine, VllmOptions, create, discover
from dovetail.engines.vllm.discovery import PROBES
from dovetail.models.weights import ModelUnavailableError, find_tokenizer_files
from dovetail.net.http_client import Endpoint
from dovetail_model import DovetailError, EngineError, EngineUnavailable

REMOTE = RemoteModel(MODEL)
THOUGHT_END = TOKENIZER.controls["</think>"]


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(limited())


def paths(**answers: bytes) -> Responder:
    """A server that has an answer for each path; `_` stands for / in the names here."""

    async def answer(path: str, body: bytes) -> list[bytes]:
        return [answers.get(path.replace("/", "_"), status(404, b'{"detail":"Not Found"}'))]

    return answer


def listed(*cards: dict[str, Any]) -> bytes:
    return status(200, json.dumps({"object": "list", "data": cards}).encode())


BASE = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 4096}
ALIAS = {**BASE, "id": "alias"}
ADAPTER = {"id": "sql", "root": "/adapters/sql", "parent": "base", "max_model_len": 4096}
VERSION = status(200, b'{"version":"0.32.0"}')


@pytest.mark.parametrize(
    ("answers", "found"),
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
def test_what_is_served(answers: dict[str, bytes], found: RemoteModel) -> None:
    async def scene() -> None:
        async with fake_server(paths(**answers)) as endpoint:
            assert await discover(endpoint) == found

    play(scene)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (status(401, b'{"error":"Unauthorized"}'), EngineError, "--engine-api-key"),
        (status(404, b"no"), EngineError, "the address is wrong"),
        (status(503, b"starting"), EngineUnavailable, "starting"),
        (status(200, b"<html>"), EngineError, "not list models as vLLM does"),
        (listed(), EngineUnavailable, "serves no model"),
    ],
)
def test_what_is_no_vllm(answer: bytes, kind: type[DovetailError], words: str) -> None:
    async def scene() -> None:
        async with fake_server(paths(_v1_models=answer)) as endpoint:
            with pytest.raises(kind, match=words):
                await discover(endpoint)

    play(scene)


def test_nobody_is_there() -> None:
    async def scene() -> None:
        with pytest.raises(EngineUnavailable, match="is vLLM running there"):
            await discover(Endpoint("127.0.0.1", 9))

    play(scene)


def test_an_address_is_needed() -> None:
    with pytest.raises(EngineSetupError, match="--engine-url"):
        create_engine("vllm", EngineSetup(TOKENIZER))
    setup = EngineSetup(TOKENIZER, endpoint=Endpoint(), remote=REMOTE, options={"speed": 1})
    with pytest.raises(EngineSetupError, match="speed"):
        create(setup)


def test_a_model_that_is_gone() -> None:
    async def scene() -> None:
        async with fake_server(paths(_v1_models=listed(BASE))) as endpoint:
            gone: TokenEngine = VllmEngine(endpoint, REMOTE, TOKENIZER)
            with pytest.raises(EngineUnavailable, match=r"does not serve 'org/model'.* base"):
                await gone.start()
            assert not (await gone.health()).ready
            with pytest.raises(EngineUnavailable, match="not running"):
                await anext(iter_deltas(gone, request()))

    play(scene)


def honest(*kept: str, behind: bool = False) -> Responder:
    """A server that keeps to constraints of these kinds, maybe only `behind` a thought, and says
    something else otherwise."""

    async def answer(path: str, body: bytes) -> list[bytes]:
        if path != "/v1/completions":
            return [listed({"id": MODEL})]
        told = json.loads(body)
        member, grammar = next(iter(told["structured_outputs"].items()))
        word = next(w for s, (text, w) in PROBES.items() if text == grammar)
        syntax = next(s for s, (text, _) in PROBES.items() if text == grammar)
        if syntax == "ebnf" and "ebnf" not in kept:
            return [status(400, b'{"error":{"message":"Invalid grammar specification."}}')]
        applies = syntax in kept and (THOUGHT_END in told["prompt"] or not behind)
        said = ids(word if applies else "Well, " + member)
        frame = {"choices": [{"token_ids": [*said, END], "finish_reason": "stop"}]}
        counts = {"prompt_tokens": 5, "completion_tokens": len(said) + 1}
        counted = {
            "choices": [],
            "usage": {**counts, "prompt_tokens_details": {"cached_tokens": 0}},
        }
        return [stream(json.dumps(frame).encode(), json.dumps(counted).encode(), b"[DONE]")]

    return answer


@pytest.mark.parametrize("kept", [("structural_tag", "ebnf", "json_schema"), ("json_schema",), ()])
def test_only_what_is_enforced_is_promised(
    kept: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with fake_server(honest(*kept)) as endpoint:
            made = VllmEngine(endpoint, REMOTE, TOKENIZER)
            assert made.capabilities.constraints == ()
            await made.start()
            assert made.capabilities.constraints == kept
            assert made.capabilities.cached_tokens
            facts = (await made.health()).facts
            assert facts is not None
            assert facts["constraints"] == list(kept)

    play(scene)
    assert ("vllm_feature_missing" in caplog.text) == (not kept)


def test_constraints_that_hold_only_behind_thoughts(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with fake_server(honest("structural_tag", behind=True)) as endpoint:
            made = VllmEngine(endpoint, REMOTE, TOKENIZER)
            await made.start()
            assert made.capabilities.constraints == ("structural_tag",)
            assert made.capabilities.constrains_after_reasoning

    play(scene)
    assert "vllm_feature_missing" in caplog.text


def test_a_server_that_does_not_tell_what_is_cached(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(path: str, body: bytes) -> list[bytes]:
        if path != "/v1/completions":
            return [listed({"id": MODEL})]
        return [stream(b'{"choices":[{"token_ids":[1],"finish_reason":"stop"}]}', b"[DONE]")]

    async def scene() -> None:
        async with fake_server(answer) as endpoint:
            made = VllmEngine(endpoint, REMOTE, TOKENIZER)
            await made.start()
            assert not made.capabilities.cached_tokens

    play(scene)
    warned = [vars(record)["fields"]["remedy"] for record in caplog.records]
    assert "--enable-prompt-tokens-details" in warned


def test_what_an_operator_can_say() -> None:
    async def scene() -> None:
        async with scripted_server("[{text: hi}]") as (_, endpoint):
            options = VllmOptions(stream_interval=4, probe=False)
            made = VllmEngine(endpoint, REMOTE, TOKENIZER, context_length=100, options=options)
            await made.start()
            assert made.capabilities.constraints == tuple(PROBES)
            assert made.capabilities.context_length == 100
            deltas = [delta async for delta in iter_deltas(made, request())]
            assert [id for delta in deltas for id in delta.ids] == [*ids("hi"), END]

    play(scene)


def test_a_key_goes_with_every_request() -> None:
    async def scene() -> None:
        async with scripted_server("[{text: hi}]", key="k") as (_, place):
            with pytest.raises(EngineError, match="refuses the key"):
                await discover(place)
            held = Endpoint(place.host, place.port, headers={"authorization": "Bearer k"})
            made = VllmEngine(held, await discover(held), TOKENIZER)
            await made.start()
            assert (await made.health()).ready

    play(scene)


def model_folder(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "tokenizer.json").write_text("{}")
    return place


def test_where_a_models_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_files_that_are_not_here_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteModel("my-model", root="/on/another/machine")
    with pytest.raises(
        ModelUnavailableError, match=r"Pass --tokenizer with a folder .*/on/another/machine"
    ):
        find_tokenizer_files(remote)
