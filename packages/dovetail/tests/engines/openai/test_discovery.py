"""Discovery of models on many kinds of servers."""

import json
from typing import Any

import pytest
from http_fixture import run
from upstream_environment import FakeRequest, FakeResponse, Responder, fake_upstream

from dovetail.engines.openai import create, discover
from dovetail.engines.registry import EngineSetupError, UpstreamSetup
from dovetail.net.http_client import Endpoint
from dovetail_model import EngineError, EngineUnavailable


def pages(**responses: Any) -> Responder:
    """Return a server that has these pages; __ in their names stands for /."""

    def reply(request: FakeRequest) -> FakeResponse:
        found = responses.get(request.path.strip("/").replace("/", "__"))
        return FakeResponse(404) if found is None else FakeResponse(body=json.dumps(found).encode())

    return reply


def listed(*cards: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(cards)}


SERVERS: dict[str, tuple[Responder, int | None]] = {
    "vllm": (pages(v1__models=listed({"id": "m", "max_model_len": 4096})), 4096),
    "openrouter": (pages(v1__models=listed({"id": "m", "context_length": 131072})), 131072),
    "groq": (pages(v1__models=listed({"id": "m", "context_window": 8192})), 8192),
    "llama.cpp": (
        pages(
            v1__models=listed({"id": "m", "meta": {"n_ctx_train": 8192}}),
            props={"default_generation_settings": {"n_ctx": 1024}},
        ),
        1024,
    ),
    "llama.cpp without props": (
        pages(v1__models=listed({"id": "m", "meta": {"n_ctx_train": 8192}})),
        8192,
    ),
    "lm studio": (
        pages(
            v1__models=listed({"id": "m"}),
            api__v0__models=listed(
                {"id": "n", "max_context_length": 1},
                {"id": "m", "max_context_length": 32768, "loaded_context_length": 4096},
            ),
        ),
        4096,
    ),
    "lm studio before it is loaded": (
        pages(
            v1__models=listed({"id": "m"}),
            api__v0__models=listed({"id": "m", "max_context_length": 32768}),
        ),
        32768,
    ),
    "ollama": (
        pages(
            v1__models=listed({"id": "m", "owned_by": "library"}),
            api__ps={"models": [{"name": "m", "context_length": 4096}]},
        ),
        4096,
    ),
    "litellm": (
        pages(
            v1__models=listed({"id": "m"}),
            model__info=listed({"model_name": "m", "model_info": {"max_input_tokens": "200000"}}),
        ),
        200000,
    ),
    "trt-llm": (pages(v1__models=listed({"id": "m"})), None),
}


@pytest.mark.parametrize("server", SERVERS)
def test_context_length_is_found(server: str) -> None:
    reply, length = SERVERS[server]

    async def check() -> None:
        async with fake_upstream(reply) as fake:
            found = await discover(fake.endpoint)
            assert (found.name, found.context_length) == ("m", length)

    run(check)


def test_all_names_are_reported() -> None:
    async def check() -> None:
        async with fake_upstream(pages(v1__models=listed({"id": "a"}, {"id": "b"}))) as fake:
            assert (await discover(fake.endpoint)).names == ("a", "b")

    run(check)


def test_server_without_a_model_list_requires_a_name() -> None:
    async def check() -> None:
        async with fake_upstream(pages()) as fake:
            found = await discover(fake.endpoint)
            with pytest.raises(EngineSetupError, match="lists no models"):
                create(UpstreamSetup(fake.endpoint, found))

    run(check)


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (
            FakeResponse(401, b'{"error": {"message": "Who?"}}'),
            EngineError,
            "rejected the configured API key",
        ),
        (FakeResponse(body=b'{"data": []}'), EngineUnavailable, "no model yet"),
        (FakeResponse(body=b"<html>"), EngineError, "invalid model list"),
        (FakeResponse(503, b"Loading"), EngineUnavailable, "not ready"),
    ],
)
def test_wrong_addresses_are_explained(
    response: FakeResponse, kind: type[Exception], words: str
) -> None:
    async def check() -> None:
        async with fake_upstream(lambda _: response) as fake:
            with pytest.raises(kind, match=words):
                await discover(fake.endpoint)

    run(check)


def test_no_server() -> None:
    async def check() -> None:
        with pytest.raises(EngineUnavailable, match="is a server running there"):
            await discover(Endpoint(port=1))

    run(check)
