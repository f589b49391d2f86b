"""Run servers to be verified or benchmarked, each in its own processes.

Used by `tools/verify_servers.py` and `benchmarks/frontend`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "packages" / "dovetail" / "tests" / "support"))

from dynamo_environment import PLANES  # noqa: E402
from server_process import NAME, TOKENIZERS, clean_environment, free_port  # noqa: E402
from vllm_environment import PYTHON as VLLM_PYTHON  # noqa: E402
from vllm_environment import Vllm, running_vllm  # noqa: E402

__all__ = [
    "DYNAMO",
    "NAME",
    "PARSERS",
    "ROOT",
    "TOKENIZERS",
    "VLLM",
    "VLLM_PYTHON",
    "await_model",
    "dynamo",
    "process",
    "scripted_engine",
    "vllm",
]

VLLM = ROOT / ".cache" / "vllm" / "venv" / "bin" / "python"
DYNAMO = ROOT / ".cache" / "dynamo" / "bin" / "python"
START_TIMEOUT_SECONDS = 120.0
#: Qwen3's template renders calls in the format of Hermes, for which every server is configured.
PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")

Process = subprocess.Popen[bytes]


@contextmanager
def scripted_engine(script: Path, model: Path, scratch: Path, *flags: str) -> Iterator[int]:
    """Run the scripted engine for a model's folder, and yield its port."""
    port = free_port()
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(script)]
    command += ["--model", str(model), "--port", str(port), "--served-model-name", NAME, *flags]
    with process(command, clean_environment(scratch), scratch / "engine.log"):
        await_model(port)
        yield port


@contextmanager
def dynamo(worker: Sequence[str], scratch: Path, *flags: str) -> Iterator[tuple[Process, int]]:
    """Run Dynamo's frontend with a worker command, and yield its port."""
    port, log = free_port(), scratch / "dynamo.log"
    frontend = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    frontend += [*PLANES, "--enable-anthropic-api", *flags]
    home = {"HOME": str(scratch), "DYN_FILE_KV": str(scratch / "discovery"), "HF_HUB_OFFLINE": "1"}
    clean = {"PATH": os.environ["PATH"], **home}
    with (
        process([str(DYNAMO), *worker], clean, log),
        process([str(DYNAMO), *frontend], clean, log) as it,
    ):
        await_model(port)
        yield it, port


@contextmanager
def vllm(model: Path, scratch: Path, *more: str) -> Iterator[Vllm]:
    """Run vLLM on the CPU, with the parsers of Qwen3."""
    os.environ.setdefault(VLLM_PYTHON, str(VLLM))
    flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details", *PARSERS)
    with running_vllm(model, scratch, *flags, "--enable-auto-tool-choice", *more) as server:
        yield server


@contextmanager
def process(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Process]:
    """Run a process until the block ends, its output appended to the log."""
    with log.open("ab") as output:
        running = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def await_model(port: int) -> None:
    """Wait until a server lists its model."""
    until = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < until:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            if NAME.encode() in connection.getresponse().read():
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.3)
    raise RuntimeError(f"no server with model {NAME} on port {port}")
