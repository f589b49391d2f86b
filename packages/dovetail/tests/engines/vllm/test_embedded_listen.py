"""`dovetail engine vllm --listen` with the real vLLM, and Dovetail servers in other processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from server_process import Running, clean_environment, dovetail, free_port, served
from tiny_qwen3 import tiny_lora, tiny_qwen3
from vllm_environment import ENVIRONMENT, PYTHON, REAL

pytestmark = REAL

KEY = "the key of the engine"
START_TIMEOUT_SECONDS = 300.0
LONG_TOKENS = 1500  # the output of some seconds
OPTIONS = ("dtype=float32", "enforce_eager=true", "block_size=32", "max_num_seqs=8")


@dataclass(frozen=True)
class Hosted:
    """A running `dovetail engine vllm`: its process, its log, and what its clients need."""

    process: "subprocess.Popen[bytes]"
    log: Path
    model: Path
    port: int
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"tls://localhost:{self.port}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of a server that uses this engine."""
        return ("--engine", "vllm", "--engine-url", self.url)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    folder = tmp_path_factory.mktemp("hosted")
    model = tiny_qwen3(folder / "tiny-qwen3")
    authority = Authority(folder)
    issued, port, log = authority.issue("engine"), free_port(), folder / "engine.log"
    options = [f"python={os.environ[PYTHON]}", *OPTIONS]
    options += [f"lora_modules=poet={tiny_lora(folder / 'poet', 1)}", "max_lora_rank=8"]
    command = [sys.executable, "-m", "dovetail", "engine", "vllm", str(model)]
    command += ["--listen", f"127.0.0.1:{port}"]
    command += ["--tls-cert-path", str(issued.cert), "--tls-key-path", str(issued.key)]
    command += [part for one in options for part in ("--engine-option", one)]
    environment = {"DOVETAIL_ENGINE_API_KEY": KEY, "SSL_CERT_FILE": str(authority.file)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**clean_environment(folder), **ENVIRONMENT, **environment},
        )
    try:
        hosted = Hosted(process, log, model, port, environment)
        await_that(lambda: starts(hosted) == 1)
        yield hosted
    finally:
        process.terminate()
        assert process.wait(60) == 0


def starts(hosted: Hosted) -> int:
    """Return how often the engine has begun to serve."""
    assert hosted.process.poll() is None, hosted.log.read_text()
    return hosted.log.read_text().count(f"serving {hosted.model} at tls://127.0.0.1:{hosted.port}")


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def frontend(engine: Hosted, *flags: str) -> Iterator[Running]:
    place = ("--tokenizer", str(engine.model))
    with served(*engine.flags, *place, *flags, environment=engine.environment) as running:
        yield running


@pytest.fixture(scope="module")
def server(engine: Hosted) -> Iterator[Running]:
    with frontend(engine, "--recovery-wait", "300") as running:
        yield running


def chat(server: Running, **fields: Any) -> Any:
    message = {"role": "user", "content": "Write a line."}
    body = {"model": "tiny-qwen3", "max_tokens": 12, "temperature": 0, "messages": [message]}
    return server.post("/v1/chat/completions", {**body, **fields})


def running_requests(server: Running) -> int:
    found = re.search(r'"running":\s*(\d+)', server.request("GET", "/health").body.decode())
    assert found is not None
    return int(found[1])


@contextmanager
def endless_stream(server: Running, tokens: int = 20_000) -> Iterator[Any]:
    """A stream of which some bytes have arrived. Leaving the block disconnects."""
    message = {"role": "user", "content": "Go on."}
    body = {"model": "tiny-qwen3", "max_tokens": tokens, "temperature": 0, "messages": [message]}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with server.open("POST", "/v1/chat/completions", body) as response:
        response.readline()
        yield response


def test_requests_of_two_servers_share_the_engine(engine: Hosted, server: Running) -> None:
    with frontend(engine) as other, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(chat, [server, other] * 4))
    texts = {str(one["choices"][0]["message"]) for one in results}
    assert len(texts) == 1
    assert {one["usage"]["completion_tokens"] for one in results} == {12}


def test_an_adapter_is_requested_as_the_model(engine: Hosted, server: Running) -> None:
    base = chat(server)["choices"][0]["message"]
    with frontend(engine, "poet") as poet:
        assert chat(poet, model="poet")["choices"][0]["message"] != base


@pytest.mark.parametrize(
    ("scheme", "key", "reason"),
    [("tls", "another key", "rejected the connection"), ("tcp", KEY, "")],
    ids=["wrong key", "no TLS"],
)
def test_a_client_that_is_not_accepted_exits_with_one_line(
    engine: Hosted, tmp_path: Path, scheme: str, key: str, reason: str
) -> None:
    url = f"{scheme}://localhost:{engine.port}"
    environment = {**engine.environment, "DOVETAIL_ENGINE_API_KEY": key}
    flags = ("--engine", "vllm", "--engine-url", url, "--tokenizer", str(engine.model))
    ended = dovetail("serve", *flags, "--http-port", "0", home=tmp_path, environment=environment)
    assert ended.status != 0
    assert len(ended.err.strip().splitlines()) == 1, ended.err
    assert reason in ended.err
    assert str(engine.port) in ended.err
    assert key not in ended.err


def test_a_certificate_that_is_not_trusted_is_rejected(engine: Hosted, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    environment = {**engine.environment, "SSL_CERT_FILE": str(other.file)}
    flags = (*engine.flags, "--tokenizer", str(engine.model), "--http-port", "0")
    ended = dovetail("serve", *flags, home=tmp_path, environment=environment)
    assert ended.status != 0
    assert "certificate" in ended.err.lower()


def test_a_disconnect_aborts_the_generation(server: Running) -> None:
    with endless_stream(server):
        assert running_requests(server) == 1
    await_that(lambda: running_requests(server) == 0)


def test_a_killed_server_leaves_no_generation(engine: Hosted, server: Running) -> None:
    with frontend(engine) as other, endless_stream(other):
        await_that(lambda: running_requests(server) == 1)
        other.process.kill()
        await_that(lambda: running_requests(server) == 0)
        other.process.wait()


def child_of(pid: int) -> int:
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def test_a_killed_engine_is_restarted_and_the_stream_goes_on(
    engine: Hosted, server: Running
) -> None:
    """The server waits for the engine, connects again, and continues the stream."""
    with endless_stream(server, LONG_TOKENS) as response:
        os.kill(child_of(engine.process.pid), signal.SIGKILL)
        rest = response.read().decode()
    assert starts(engine) == 2
    assert "engine_exited" in engine.log.read_text()
    assert '"error"' not in rest
    assert '"finish_reason":"length"' in rest
    assert f'"completion_tokens":{LONG_TOKENS}' in rest
    assert chat(server)["usage"]["completion_tokens"] == 12
