"""A vLLM or SGLang server that returns with another model is not ready."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from completions_fixture import fake_server, status
from scripted_fixture import TOKENIZER, request

from dovetail.engines.engine import RemoteModel, TokenEngine
from dovetail.engines.served_model import ServedModelCheck
from dovetail.engines.sglang import SglangEngine
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.net.http_client import Endpoint
from dovetail_model import EngineUnavailable

FIRST = ("m", "/models/first")
RENAMED = ("other", "/models/other")
REPLACED = ("m", "/models/other")


class ModelServer:
    """A server that reports the model that a test sets."""

    def __init__(self, model: tuple[str, str] = FIRST, *, list_only: bool = False) -> None:
        self.model = model
        self.list_only = list_only

    async def respond(self, path: str, body: bytes) -> list[bytes]:
        name, root = self.model
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": name, "root": root}]},
            "/health": {},
            "/ready": {},
        }
        if not self.list_only:
            pages["/model_info"] = {"served_model_name": name, "model_path": root}
        found = pages.get(path)
        return [status(404, b"") if found is None else status(200, json.dumps(found).encode())]


@asynccontextmanager
async def started(kind: str, server: ModelServer) -> AsyncIterator[TokenEngine]:
    async with fake_server(server.respond) as endpoint:
        engine = create(kind, endpoint)
        await engine.start()
        yield engine
        await engine.stop()


def create(kind: str, endpoint: Endpoint) -> TokenEngine:
    if kind == "sglang":
        return SglangEngine(endpoint, TOKENIZER)
    return VllmEngine(endpoint, RemoteModel("m"), TOKENIZER, options=VllmOptions(probe=False))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("list_only", [False, True])
@pytest.mark.parametrize("now", [RENAMED, REPLACED])
def test_another_model_is_not_ready(
    kind: str, list_only: bool, now: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        server = ModelServer(list_only=list_only)
        async with started(kind, server) as engine:
            assert (await engine.health()).ready
            server.model = now
            for _ in range(3):
                health = await engine.health()
                assert not health.ready
                assert now[0] in health.detail
            with pytest.raises(EngineUnavailable, match="another model"):
                await anext(iter_deltas(engine, request()))
            with pytest.raises(EngineUnavailable, match="serve"):
                await engine.start()  # the recovery of a replica
            server.model = FIRST
            await engine.start()
            assert (await engine.health()).ready

    asyncio.run(main())
    assert [record.msg for record in caplog.records if "model" in record.msg] == [
        "engine_model_changed",
        "engine_model_restored",
    ]


def test_a_server_that_reports_no_model_is_not_checked() -> None:
    check = ServedModelCheck("SGLang at http://gpu:1")
    assert check.check({}) == ""
    assert check.check({"m": "/a"}) == ""
    assert check.check({}) == ""
    assert "does not serve 'm'" in check.check({"n": "/a"})
    assert "does not serve 'm'" in check.check({})
