"""Dovetail servers with the extra `kv` in front of two real vLLM servers that publish KV events.

DOVETAIL_KV_PYTHON names the interpreter that has the extra; tools/fetch_kv.py creates one.
"""

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kv_replicas import BLOCK_TOKENS, BLOCKS, NAME, KvReplica, running_kv_replica
from server_process import Running, served, source_paths
from tiny_qwen3 import LAYERS, tiny_qwen3
from vllm_environment import PYTHON as VLLM_PYTHON

PYTHON = "DOVETAIL_KV_PYTHON"
REAL = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        PYTHON not in os.environ or VLLM_PYTHON not in os.environ,
        reason="vLLM and the extra kv are required: run make test-fleet",
    ),
]
WAIT_SECONDS = 90.0


@dataclass
class KvFleet:
    """Two replicas. Their numbers are those that a server gives them.

    `blocks`: the blocks of each KV cache.
    """

    folder: Path
    model: Path
    blocks: int = BLOCKS
    replicas: list[KvReplica] = field(default_factory=list)
    _running: list[ExitStack] = field(default_factory=list)

    def start(self, number: int) -> None:
        """Start a replica, at its earlier address if it has run before."""
        stack, ports = ExitStack(), None
        if number < len(self.replicas):
            old = self.replicas.pop(number)
            del self._running[number]
            ports = (old.vllm.port, old.events_port, old.replay_port)
        folder = self.folder / str(number)
        replica = running_kv_replica(number, self.model, folder, ports, self.blocks)
        self.replicas.insert(number, stack.enter_context(replica))
        self._running.insert(number, stack)

    def stop(self, number: int) -> None:
        self._running[number].close()

    def close(self) -> None:
        for stack in self._running:
            stack.close()

    @property
    def cache_flags(self) -> list[str]:
        """The size of the KV caches as settings. vLLM never uses the first block."""
        return ["--kv-blocks", str(self.blocks - 1), "--kv-block-size", str(BLOCK_TOKENS)]

    @property
    def addresses(self) -> dict[str, list[str]]:
        """The addresses of the events and of their replay, as settings."""
        ports = {
            "events": [(one.vllm.url, one.events_port) for one in self.replicas],
            "replay": [(one.vllm.url, one.replay_port) for one in self.replicas],
        }
        return {
            name: [f"{url}=tcp://127.0.0.1:{port}" for url, port in found]
            for name, found in ports.items()
        }

    @property
    def events(self) -> list[str]:
        """The flags of a server that subscribes to all replicas."""
        names = {"events": "--kv-events", "replay": "--kv-events-replay"}
        found = self.addresses.items()
        return [part for name, values in found for one in values for part in (names[name], one)]

    @contextmanager
    def serve(self, name: str, *arguments: str | Path) -> Iterator["KvServer"]:
        """Run a server in front of all replicas during the block."""
        folder = self.folder / name
        folder.mkdir()
        urls = [flag for one in self.replicas for flag in ("--engine-url", one.vllm.url)]
        trace = folder / "trace.jsonl"
        written = ("--trace-file", trace, "--trace-block-tokens", str(BLOCK_TOKENS))
        with served(
            *("--engine", "vllm", *urls, *written, "--log-format", "json", *arguments),
            environment={"PYTHONPATH": source_paths(folder / "metadata")},
            python=os.environ[PYTHON],
        ) as running:
            yield KvServer(running, trace)


@contextmanager
def running_kv_fleet(folder: Path, blocks: int = BLOCKS, layers: int = LAYERS) -> Iterator[KvFleet]:
    """Start both replicas. More layers make the prefill slower."""
    fleet = KvFleet(folder, tiny_qwen3(folder / "model", layers=layers), blocks)
    try:
        for number in range(2):
            fleet.start(number)
        yield fleet
    finally:
        fleet.close()


class IndexProcess:
    """The index of KV events that a frontend has, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def send(self, message: Any) -> None:
        self._stdin.write(json.dumps(message) + "\n")
        self._stdin.flush()

    def find(self, prompt: list[int]) -> dict[int, int]:
        """Return the cached leading tokens of a prompt by replica."""
        self.send(prompt)
        found = json.loads(self._stdout.readline())
        return {int(replica): tokens for replica, tokens in found.items()}

    def await_blocks(self, replica: int, ids: list[int]) -> None:
        """Wait until the index has all complete blocks of a turn. Its last token is not cached."""
        wanted, until = (len(ids) - 1) // BLOCK_TOKENS, time.monotonic() + WAIT_SECONDS
        while self.find(ids).get(replica, 0) // BLOCK_TOKENS < wanted:
            assert time.monotonic() < until, "the blocks of the last turn are not in the index"
            time.sleep(0.005)


@contextmanager
def running_index(fleet: KvFleet, folder: Path) -> Iterator[IndexProcess]:
    folder.mkdir()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [os.environ[PYTHON], Path(__file__).with_name("kv_event_index_process.py")],
            env={**os.environ, "PYTHONPATH": source_paths(folder / "metadata")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        try:
            index = IndexProcess(process)
            index.send({"urls": [one.vllm.url for one in fleet.replicas], **fleet.addresses})
            yield index
        finally:
            process.kill()


@dataclass(frozen=True)
class Turn:
    """What a turn cost: the replica, the tokens of its prompt, and those that were cached."""

    replica: int
    prompt_tokens: int
    cached_tokens: int
    reply: str

    @property
    def is_cached(self) -> bool:
        """Whether nearly all of the prompt was cached, without its new end."""
        return self.cached_tokens > 0.8 * self.prompt_tokens


@dataclass
class KvServer:
    """A running server and its trace."""

    running: Running
    trace: Path

    def send(
        self, messages: list[dict[str, str]], session: str | None = None, *, is_last: bool = False
    ) -> Turn:
        """Send a turn and wait for the line of the trace that describes it.

        `is_last`: the session ends, so that it does not count as load.
        """
        body = {"model": NAME, "messages": messages, "max_tokens": 8}
        headers = {} if session is None else {"x_session_id": session}
        headers |= {"x_dynamo_session_final": "true"} if is_last else {}
        reply = self.running.request("POST", "/v1/chat/completions", body, **headers)
        assert reply.status == 200, reply.body
        line = self._await_line(reply.headers["x-request-id"])
        usage, text = line["usage"], reply.json["choices"][0]["message"].get("content") or ""
        cached = usage.get("cached_tokens", 0)
        return Turn(line.get("replica", 0), usage["input_tokens"], cached, text)

    def lines(self) -> list[dict[str, Any]]:
        text = self.trace.read_text(encoding="utf-8") if self.trace.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log with this event."""
        lines = [line for line in self.running.log.read_text().splitlines() if f'"{event}"' in line]
        return [json.loads(line) for line in lines]

    def await_log(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        until = time.monotonic() + WAIT_SECONDS
        while len(found := self.logged(event)) < count:
            assert time.monotonic() < until, self.running.log.read_text()[-3000:]
            time.sleep(0.05)
        return found

    def receive_events(self, count: int = 2) -> None:
        """Send new prompts until the log reports this number of replicas whose events arrive."""
        until, dice = time.monotonic() + WAIT_SECONDS, random.Random(7)
        while len(self.logged("kv_events_received")) < count:
            assert time.monotonic() < until, self.running.log.read_text()[-3000:]
            self.send([user(random_text(dice, 120))], f"warm-{dice.random()}", is_last=True)
            time.sleep(0.3)

    def _await_line(self, id: str) -> dict[str, Any]:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            found = [line for line in self.lines() if line["id"] == id]
            if found:
                return found[0]
            assert time.monotonic() < until, f"the trace has no line for {id}"
            time.sleep(0.01)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def random_text(dice: random.Random, words: int) -> str:
    """Return numbers: each digit is one token."""
    return " ".join(str(dice.randrange(100, 1000)) for _ in range(words // 4))
