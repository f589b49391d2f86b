"""Unexpected statuses of an upstream, secrets in its errors, and a server with another model."""

import json
from typing import Any

import pytest
from abuse_failures import GENERATION_BODIES
from http_fixture import NAME, run, serving
from upstream_environment import (
    FakeRequest,
    FakeResponse,
    Responder,
    events,
    fake_upstream,
    rejection,
    upstream,
    user,
)

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai import OpenAIOptions, OpenAIUpstream
from dovetail.engines.redaction import Redactor
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import Sealer
from dovetail.net.http_client import Endpoint
from dovetail.pipeline.registry import ModelRegistry, UpstreamModel
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import DovetailError, InvalidEngineResponse

KEY = "sk-upstream-secret-0123456789"
OPTIONS = OpenAIOptions(api="chat", reasoning_field="none")


def responder(given: FakeResponse, models: bytes = b'{"data": [{"id": "m"}]}') -> Responder:
    def choose(request: FakeRequest) -> FakeResponse:
        return FakeResponse(body=models) if request.path == "/v1/models" else given

    return choose


def with_key(endpoint: Endpoint) -> Endpoint:
    return Endpoint(port=endpoint.port, headers={"authorization": f"Bearer {KEY}"})


def registry(engine: OpenAIUpstream) -> ModelRegistry:
    sealer = Sealer(Keyring([bytes(32)]))
    normalizer = PromptNormalizer(NormalizationOptions())
    return ModelRegistry([UpstreamModel((NAME,), engine, normalizer, sealer)], {})


@pytest.mark.parametrize("status", [201, 202, 204, 206, 301, 302, 304, 307, 308])
@pytest.mark.parametrize("body", [b"", b'{"error": {"message": "prompt is too long"}}'])
def test_unexpected_status_is_a_bad_gateway(status: int, body: bytes) -> None:
    """It is no fault of the client, and a redirect is not followed."""
    body = b"" if status in (204, 304) else body

    async def scene() -> None:
        headers = (("location", "http://10.0.0.5:8000/elsewhere"),)
        async with fake_upstream(responder(FakeResponse(status, body, headers=headers))) as fake:
            engine = upstream(fake.endpoint, api="chat", reasoning_field="none")
            with pytest.raises(InvalidEngineResponse, match=f"unexpected status {status}"):
                await events(engine, user("Hi."))
            async with serving(registry=registry(engine)) as stage:
                for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
                    sent = {"model": NAME, **GENERATION_BODIES[path]}
                    reply = await stage.request("POST", path, sent)
                    assert reply.status == 502, reply
                    assert b"10.0.0.5" not in reply.body
                    assert "location" not in reply.headers

    run(scene)


def echoes(port: int) -> dict[str, FakeResponse]:
    """Return responses that quote the request or the server."""
    quote = f"Bearer {KEY} at 127.0.0.1:{port} (http://127.0.0.1:{port}/v1, host 127.0.0.1)"
    failed = json.dumps({"error": {"message": quote, "code": "bad", "param": KEY}})
    headers = (("x-debug", quote), ("retry-after", "inf"), ("www-authenticate", KEY))
    return {
        **{
            str(status): FakeResponse(status, failed.encode(), headers=headers)
            for status in (400, 404, 408, 413, 422, 429, 500, 502, 503, 529)
        },
        "text": FakeResponse(400, quote.encode(), kind="text/plain"),
        "overflow": rejection(400, f"maximum context length, {quote}"),
        "truncated": rejection(400, "x" * 490 + quote),
        "event": FakeResponse(body=f"data: {failed}\n\n".encode(), kind="text/event-stream"),
        "later event": FakeResponse(
            body=b'data: {"choices": [{"delta": {"content": "Once"}}]}\n\n'
            + f"data: {failed}\n\n".encode(),
            kind="text/event-stream",
        ),
    }


@pytest.mark.parametrize("kind", echoes(0))
def test_secrets_of_the_upstream_never_reach_clients(kind: str) -> None:
    async def scene() -> None:
        responses: dict[str, FakeResponse] = {}
        async with fake_upstream(lambda request: responder(responses[kind])(request)) as fake:
            responses.update(echoes(fake.endpoint.port))
            engine = OpenAIUpstream(with_key(fake.endpoint), RemoteModel("m"), OPTIONS)
            async with serving(registry=registry(engine)) as stage:
                for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
                    for stream in (False, True):
                        sent: dict[str, Any] = {"model": NAME, **GENERATION_BODIES[path]}
                        reply = await stage.request("POST", path, {**sent, "stream": stream})
                        seen = f"{reply.headers} {reply.body!r}"
                        assert "error" in seen
                        for secret in (KEY, KEY[:12], "127.0.0.1", str(fake.endpoint.port)):
                            assert secret not in seen, (path, seen)

    run(scene)


def test_unreachable_upstream_is_not_named() -> None:
    async def scene() -> None:
        engine = OpenAIUpstream(Endpoint(port=9), RemoteModel("m"), OPTIONS)
        with pytest.raises(DovetailError) as raised:
            await events(engine, user("Hi."))
        assert "127.0.0.1" not in raised.value.message
        assert "127.0.0.1" not in (await engine.health()).detail

    run(scene)


@pytest.mark.parametrize(
    ("listed", "ready"),
    [
        ([{"id": "m"}], True),
        ([{"id": "other"}, {"id": "m"}], True),
        ([{"id": "other"}], False),
        ([{"id": ["m"]}], False),
        ([], False),
    ],
)
def test_server_that_returns_with_another_model_is_not_ready(listed: Any, ready: bool) -> None:
    async def scene() -> None:
        models = json.dumps({"data": listed}).encode()
        async with fake_upstream(responder(FakeResponse(500), models)) as fake:
            engine = OpenAIUpstream(fake.endpoint, RemoteModel("m", names=("m", "n")), OPTIONS)
            health = await engine.health()
            assert health.ready is ready
            assert ready or "does not serve 'm'" in health.detail
            unlisted = OpenAIUpstream(fake.endpoint, RemoteModel("alias", names=("m",)), OPTIONS)
            assert (await unlisted.health()).ready
            if not listed:
                return  # the server would not start
            async with serving(registry=registry(engine)) as stage:
                reply = await stage.request("GET", "/ready")
                assert reply.status == (200 if ready else 503)

    run(scene)


def test_ordinary_words_are_not_removed() -> None:
    redactor = Redactor(Endpoint("gpu", 8000, headers={"x-env": "prod", "x-empty": ""}))
    text = "the production server reports a bearer token error in prompt 8000"
    assert redactor.clean(text) == text
    assert redactor.clean("env prod at gpu:8000") == "env *** at the engine"
