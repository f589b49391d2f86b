"""Clients never see the address of a vLLM or SGLang server, nor the key that it received."""

import json
import logging
from typing import Any

import pytest
from abuse_failures import GENERATION_BODIES
from completions_fixture import fake_server, open_stream, status, stream
from http_fixture import NAME, run, serving, tiny_model

from dovetail.engines.engine import RemoteModel, TokenEngine
from dovetail.engines.sglang import SglangEngine
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.net.http_client import Endpoint
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool

KEY = "sk-engine-secret-0123456789"
MODELS = status(200, b'{"data": [{"id": "m"}]}')
FIRST_FRAMES = {
    "vllm": b'{"choices": [{"token_ids": [40]}]}',
    "sglang": b'{"output_ids": [40], "meta_info": {"completion_tokens": 1}}',
}


def create(kind: str, endpoint: Endpoint) -> TokenEngine:
    tokenizer = tiny_model().tokenizer
    if kind == "sglang":
        return SglangEngine(endpoint, tokenizer)
    return VllmEngine(endpoint, RemoteModel("m"), tokenizer, options=VllmOptions(probe=False))


def registry(engine: TokenEngine) -> ModelRegistry:
    model = tiny_model()
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    return ModelRegistry([TokenModel((NAME,), model, preparer, ReplicaPool([engine]))], {})


def echoes(kind: str, port: int) -> dict[str, bytes]:
    """Return responses that quote the request or the server."""
    quote = f"Bearer {KEY} at 127.0.0.1:{port} (http://127.0.0.1:{port}/v1, host 127.0.0.1)"
    failed = json.dumps({"error": {"message": quote, "code": 500, "param": KEY}}).encode()
    overflow = json.dumps({"error": {"message": f"maximum context length {quote}"}}).encode()
    truncated = json.dumps({"error": {"message": "x" * 295 + quote}}).encode()
    return {
        **{str(code): status(code, failed) for code in (400, 404, 408, 422, 429, 500, 502, 503)},
        "text": status(400, quote.encode()),
        "overflow": status(400, overflow),
        "truncated": status(400, truncated),
        "truncated 500": status(500, truncated),
        "event": stream(failed),
        "later event": stream(FIRST_FRAMES[kind], failed),
        "disconnected": open_stream(FIRST_FRAMES[kind]),
    }


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("case", echoes("vllm", 0))
def test_secrets_of_an_engine_never_reach_clients(
    kind: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    responses: dict[str, bytes] = {}

    async def respond(path: str, body: bytes) -> list[bytes]:
        return [responses[case] if body else MODELS if path == "/v1/models" else status(200, b"{}")]

    async def scene() -> None:
        async with fake_server(respond) as place:
            responses.update(echoes(kind, place.port))
            endpoint = Endpoint(port=place.port, headers={"authorization": f"Bearer {KEY}"})
            async with serving(registry=registry(create(kind, endpoint))) as stage:
                for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
                    for streamed in (False, True):
                        sent: dict[str, Any] = {"model": NAME, **GENERATION_BODIES[path]}
                        reply = await stage.request("POST", path, {**sent, "stream": streamed})
                        seen = f"{reply.headers} {reply.body!r}"
                        assert "error" in seen
                        for secret in (KEY, KEY[:10], "127.0.0.1", str(place.port)):
                            assert secret not in seen, (path, seen)

    run(scene)
    assert KEY not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_log_has_the_address_of_an_engine_that_fails(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ports: list[int] = []

    async def models_only(path: str, body: bytes) -> list[bytes]:
        return [] if body else [MODELS if path == "/v1/models" else status(200, b"{}")]

    async def scene() -> None:
        async with fake_server(models_only) as place:
            ports.append(place.port)
            async with serving(registry=registry(create(kind, place))) as stage:
                body = {"model": NAME, **GENERATION_BODIES["/v1/messages"]}
                assert (
                    str(place.port).encode()
                    not in (await stage.request("POST", "/v1/messages", body)).body
                )

    run(scene)
    reasons = [vars(r)["fields"]["reason"] for r in caplog.records if r.msg == "replica_failed"]
    assert reasons
    assert str(ports[0]) in reasons[0]
