"""Dynamo's frontend with workers in child processes, for the tests of the engine `dynamo`.

The workers are Dynamo's mockers, or one that outputs scripted ids and records its requests
(dynamo_worker.py). Everything listens on loopback only.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from dynamo_environment import PLANES, PYTHON
from server_process import free_port, qwen_folder

NAME = "mock/qwen3"
WINDOW = 8192
BLOCK_TOKENS = 16
START_TIMEOUT_SECONDS = 120.0  # on a small machine
REAL = [
    pytest.mark.fleet,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        PYTHON is None,
        reason="DOVETAIL_DYNAMO_PYTHON names no interpreter with Dynamo: run make test-fleet",
    ),
]
WORKER = Path(__file__).with_name("dynamo_worker.py")
_HOSTS = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST")
_LOOPBACK = dict.fromkeys(_HOSTS, "127.0.0.1")


@dataclass
class Fleet:
    """A frontend, its workers, and the folder of the model."""

    folder: Path
    model: Path
    port: int
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in paths)

    def start_mocker(self, *flags: str) -> "subprocess.Popen[bytes]":
        """Start a mocker without waiting for it."""
        model = ("--model-path", str(self.model), "--model-name", NAME)
        limits = ("--max-model-len", str(WINDOW), "--block-size", str(BLOCK_TOKENS))
        # without the bytes per token, the mocker needs transformers
        cache = ("--num-gpu-blocks-override", "8192", "--kv-bytes-per-token", "1024")
        return self._start_worker("-m", "dynamo.mocker", *model, *limits, *cache, *PLANES, *flags)

    def start_scripted(self, output: Sequence[int], requests: Path) -> "subprocess.Popen[bytes]":
        """Start a worker that outputs these ids and appends its requests to a file."""
        ids = ",".join(map(str, output))
        model = ("--model", str(self.model), "--name", NAME)
        parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        return self._start_worker(
            str(WORKER), *model, *parsers, "--output", ids, "--requests", str(requests)
        )

    def await_workers(self, count: int) -> None:
        """Wait until the frontend has the model and this number of workers."""
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < until:
            if self.worker_count() == count and (bool(self.models()) or not count):
                return
            time.sleep(0.2)
        pytest.fail(f"the frontend does not have {count} workers: {self.log}")

    def worker_count(self) -> int:
        reply = self._get("/health")
        instances = reply.get("instances", [])
        return sum(one["endpoint"] == "generate" for one in instances)

    def models(self) -> list[str]:
        return [card["id"] for card in self._get("/v1/models").get("data", [])]

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        lines = self._read("/metrics").decode().splitlines()
        found = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.kill()
        worker.wait()

    def _start_worker(self, *command: str) -> "subprocess.Popen[bytes]":
        log = self.folder / f"worker{len(self.workers)}.log"
        self.workers.append(self.start_process(log, *command))
        return self.workers[-1]

    def start_process(self, log: Path, *command: str) -> "subprocess.Popen[bytes]":
        assert PYTHON is not None
        env = {**os.environ, **_LOOPBACK, "HOME": str(self.folder), "HF_HUB_OFFLINE": "1"}
        env["DYN_FILE_KV"] = str(self.folder / "discovery")
        with log.open("wb") as out:
            return subprocess.Popen(
                [PYTHON, *command], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _get(self, path: str) -> Any:
        content = self._read(path)
        return json.loads(content) if content else {}

    def _read(self, path: str) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, HTTPException):
            return b""
        finally:
            connection.close()


@contextmanager
def running_frontend(folder: Path, *flags: str) -> Iterator[Fleet]:
    """Run a frontend without workers. It and all its workers end with the block."""
    fleet = Fleet(folder, qwen_folder(folder / "model"), free_port())
    address = ("--http-host", "127.0.0.1", "--http-port", str(fleet.port))
    command = ("-m", "dynamo.frontend", *address, "--router-mode", "kv", *PLANES, *flags)
    frontend = fleet.start_process(folder / "frontend.log", *command)
    try:
        yield fleet
    finally:
        for process in (*fleet.workers, frontend):
            process.kill()
            process.wait()
