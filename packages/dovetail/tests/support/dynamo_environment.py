"""Dynamo's mocker, which serves SGLang's native `/generate`, in child processes.

DOVETAIL_DYNAMO_PYTHON names the interpreter that has it; tools/fetch_dynamo.py creates one.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import free_port, qwen_folder

from dovetail.engines.sglang import discover
from dovetail.net.http_client import Endpoint
from dovetail_model import EngineError

PYTHON = os.environ.get("DOVETAIL_DYNAMO_PYTHON")
MAX_CHECKS, CHECK_INTERVAL_SECONDS = 300, 0.2
PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


@contextmanager
def mocking(folder: Path, name: str, context_length: int) -> Iterator[Endpoint]:
    """Run a frontend with a worker that simulates an SGLang server with this context length."""
    if PYTHON is None:
        pytest.skip("no Dynamo: DOVETAIL_DYNAMO_PYTHON names no interpreter (make test-sglang)")
    model = qwen_folder(folder / "model")
    port = free_port()
    worker = [
        "--model-path",
        str(model),
        "--model-name",
        name,
        "--max-model-len",
        str(context_length),
    ]
    worker += ["--kv-bytes-per-token", "1024"]  # without it, the worker needs transformers
    commands = [
        ["dynamo.mocker", *worker, "--engine-type", "sglang", "--sglang-generate", *PLANES],
        ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *PLANES],
    ]
    env = {**os.environ, "HOME": str(folder), "DYN_FILE_KV": str(folder / "discovery")}
    env["DYN_SGLANG_ENABLE_GENERATE"] = "true"
    log = folder / "dynamo.log"
    with log.open("wb") as out:
        processes = [
            subprocess.Popen(
                [PYTHON, "-m", *command], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            for command in commands
        ]
    try:
        endpoint = Endpoint("127.0.0.1", port)
        if not asyncio.run(_is_discovered(endpoint, processes)):
            pytest.fail(f"Dynamo did not start: {log.read_text(errors='replace')[-2000:]}")
        yield endpoint
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _is_discovered(endpoint: Endpoint, processes: list["subprocess.Popen[bytes]"]) -> bool:
    """Return whether the frontend finds the worker in time; False also if one of them exits."""
    for _ in range(MAX_CHECKS):
        if any(process.poll() is not None for process in processes):
            return False
        try:
            await discover(endpoint)
        except EngineError:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        else:
            return True
    return False
