"""A real vLLM for tests, started once per session.

DOVETAIL_VLLM_PYTHON names the interpreter that has it. `make test-vllm` creates one.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from server_process import free_port
from tiny_qwen3 import tiny_qwen3

PYTHON = "DOVETAIL_VLLM_PYTHON"
NAME = "tiny-qwen3"
START_TIMEOUT_SECONDS = 300.0  # on a small machine
#: Small blocks for a CPU build, so that short prompts have cached prefixes too.
FLAGS = ("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "32")
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

REAL = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        PYTHON not in os.environ,
        reason=f"{PYTHON} names no interpreter with vLLM: run make test-vllm",
    ),
]


@dataclass(frozen=True)
class Vllm:
    """A server that accepts requests, and the folder of its model."""

    port: int
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [line for line in lines if line.startswith(f"vllm:{name}{{")]
        return sum(float(line.split()[-1]) for line in found if all(one in line for one in wanted))


@contextmanager
def running_vllm(
    model: Path | str, folder: Path, *flags: str, port: int | None = None
) -> Iterator[Vllm]:
    """Start a vLLM server for a model. It stops at the end of the block."""
    port = port or free_port()
    command = [os.environ[PYTHON], "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), *FLAGS, *flags]
    log = folder / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
    try:
        _await(process, port, log)
        yield Vllm(port, Path(model), process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def shared_vllm(config: pytest.Config) -> Vllm:
    """Return the server that all tests share: the tiny Qwen3, reporting cached tokens."""
    if not _shared:
        place = TemporaryDirectory(prefix="dovetail-vllm-")
        config.add_cleanup(place.cleanup)
        folder = Path(place.name)
        model = tiny_qwen3(folder / "model")
        flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details")
        server = running_vllm(model, folder, *flags)
        ending = ExitStack()
        config.add_cleanup(ending.close)
        _shared.append(ending.enter_context(server))
    return _shared[0]


_shared: list[Vllm] = []


def _await(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        if _is_up(port):
            return
        time.sleep(1.0)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _is_up(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
