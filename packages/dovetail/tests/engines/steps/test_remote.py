"""An engine on another machine: TLS, the key, the model it serves, and its restarts.

The scripted engine takes vLLM's place in `dovetail engine vllm`.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from scripted_fixture import TOKENIZER, request
from server_process import free_port
from step_fixture import CollectingSink

from dovetail.engines.engine import RemoteModel, to_public_error
from dovetail.engines.registry import EngineSetupError, discover_model
from dovetail.engines.steps import remote
from dovetail.engines.steps.remote import RemoteStepEngine
from dovetail.engines.token_stream import collect_token_ids
from dovetail.engines.vllm import listen, process
from dovetail.net.http_client import Endpoint
from dovetail.routing.pool import ReplicaPool
from dovetail.server.engines import discover_remote_engine
from dovetail.settings.config import Config
from dovetail_model import EngineError, EngineUnavailable

KEY = "a key"
HEADERS = {"authorization": f"Bearer {KEY}"}
HELLO, ENDLESS = "[{text: hello}]", "[{text: hello, hang: true}]"


@pytest.fixture(autouse=True)
def _scripted_instead_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CHILD_MODULE", "step_fixture")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support"))
    monkeypatch.setenv(listen.KEY_VARIABLE, KEY)


@asynccontextmanager
async def hosted(*arguments: str, script: str = HELLO) -> AsyncIterator[int]:
    """Run `dovetail engine vllm` in this process and yield its port when it listens."""
    port = free_port()
    options = ("--engine-option", f"python={sys.executable}", "--engine-option", f"script={script}")
    place = ("model", "--listen", f"127.0.0.1:{port}")
    running = asyncio.create_task(
        listen.run_engine(listen._parse_arguments([*place, *options, *arguments]))
    )
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert not running.done()
                await asyncio.sleep(0.1)
                continue
            writer.close()
            break
        yield port
    finally:
        signal.raise_signal(signal.SIGTERM)
        await running


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_all_streams_share_a_connection_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("engine")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    remote._tls_context.cache_clear()

    async def test() -> None:
        tls = ("--tls-cert-path", str(issued.cert), "--tls-key-path", str(issued.key))
        async with hosted(*tls) as port:
            endpoint = Endpoint.parse(f"tls://localhost:{port}", HEADERS)
            found = await discover_model("vllm", endpoint)
            engine = RemoteStepEngine("vllm", endpoint, found)
            await engine.start()
            outputs = await asyncio.gather(
                *(collect_token_ids(engine, request()) for _ in range(20))
            )
            assert {TOKENIZER.decode(one)[:5] for one in outputs} == {"hello"}
            assert (await engine.health()).ready
            await engine.stop()
            plain = Endpoint.parse(f"tcp://localhost:{port}", HEADERS)
            with pytest.raises(EngineError):
                await discover_model("vllm", plain)

    try:
        run(test())
    finally:
        remote._tls_context.cache_clear()


def test_other_engines_have_no_step_protocol() -> None:
    with pytest.raises(EngineSetupError, match="requires an http:// URL"):
        discover_remote_engine(Config(engine="sglang", engine_url=("tcp://127.0.0.1:1",)))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["m", "--listen", "8000"], "HOST:PORT"),
        (["m", "--listen", "127.0.0.1:0"], "HOST:PORT"),
        (["m", "--listen", "127.0.0.1:70000"], "HOST:PORT"),
        (["m", "--listen", "192.0.2.1:8000", "--no-tls"], r"192\.0\.2\.1:8000 \(.* address"),
        (["m", "--tls-key-path", "key.pem"], "requires --tls-cert-path"),
        (["m", "--listen", "0.0.0.0:8000"], "--tls-cert-path is required"),
        (["m", "--engine-option", "a"], "NAME=VALUE"),
        (["/no/such/model"], "/no/such/model not found"),
        (["m", "--tls-cert-path", "/no/such.pem"], r"/no/such.pem \(No such file"),
    ],
)
def test_invalid_flags(arguments: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        listen._parse_arguments(arguments)


def test_an_address_in_use_is_reported_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"127\.0\.0\.1:{port} \(Address already in use\)$"):
            listen._parse_arguments(["m", "--listen", f"127.0.0.1:{port}"])


def test_the_operator_can_stop_an_engine_that_loads(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)

    async def test() -> None:
        hosted = listen._parse_arguments(["m", "--engine-option", f"python={program}"])
        running = asyncio.create_task(listen.run_engine(hosted))
        await asyncio.sleep(0.5)
        assert not running.done()
        signal.raise_signal(signal.SIGTERM)
        await running

    run(test())


def test_the_address_of_an_unreachable_engine_is_reported_once() -> None:
    endpoint = Endpoint.parse(f"tcp://127.0.0.1:{free_port()}", HEADERS)
    with pytest.raises(EngineUnavailable, match="no connection to the engine") as got:
        asyncio.run(discover_model("vllm", endpoint))
    assert got.value.message.count("tcp://") == 1


def test_a_wrong_key_is_an_error_of_the_setup() -> None:
    async def test() -> None:
        async with hosted() as port:
            endpoint = Endpoint.parse(f"tcp://127.0.0.1:{port}", {"authorization": "Bearer no"})
            with pytest.raises(EngineError, match="--engine-api-key"):
                await discover_model("vllm", endpoint)

    run(test())


def test_a_killed_engine_is_restarted_and_the_pool_connects_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with hosted(script=ENDLESS) as port:
            endpoint = Endpoint.parse(f"tcp://127.0.0.1:{port}", HEADERS)
            engine = RemoteStepEngine("vllm", endpoint, RemoteModel("scripted"))
            pool = ReplicaPool([engine])
            await pool.start()
            stream = asyncio.create_task(pool.generate(request(), CollectingSink()))
            await asyncio.sleep(0.3)
            facts = (await engine.health()).facts
            assert facts is not None
            os.kill(facts["pid"], signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="closed the connection") as lost:
                await stream
            assert str(port) in lost.value.message
            assert str(port) not in to_public_error(lost.value).message
            assert await pool.wait_available(30)
            await pool.stop()
            connections = [one for one in caplog.records if one.message == "engine_connected"]
            pids = {record.__dict__["fields"]["pid"] for record in connections}
            assert len(connections) == len(pids) == 2
            assert facts["pid"] in pids

    run(test())
