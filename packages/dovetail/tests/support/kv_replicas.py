"""Real vLLM servers that publish KV events, and Dynamo's index of their caches."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from dynamo_environment import PYTHON
from kv_events import kv_events_flags
from server_process import free_port
from vllm_environment import Vllm, running_vllm

NAME = "tiny-qwen3"
BLOCK_TOKENS = 32
BLOCKS = 120  # few, so that blocks are evicted
CONTEXT = 3500
INDEX = Path(__file__).with_name("kv_index_process.py")
#: vLLM reports other salts without a name that the index understands.
SALT_PREFIX = "dynamo-cache-salt:"


@dataclass(frozen=True)
class KvReplica:
    """A vLLM server with the addresses of its KV events."""

    number: int
    vllm: Vllm
    events_port: int
    replay_port: int

    def generate(
        self, prompt: list[int], max_tokens: int, salt: str | None = None
    ) -> tuple[int, list[int]]:
        """Return the number of cached tokens, as vLLM reports it, and the output."""
        body: dict[str, Any] = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens}
        body |= {"ignore_eos": True, "return_token_ids": True, "temperature": 1.0}
        if salt is not None:
            body["cache_salt"] = SALT_PREFIX + salt
        connection = HTTPConnection("127.0.0.1", self.vllm.port, timeout=120)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            content = json.loads(response.read())
            assert response.status == 200, content
        finally:
            connection.close()
        details = content["usage"]["prompt_tokens_details"] or {}
        return details.get("cached_tokens") or 0, content["choices"][0]["token_ids"]


@contextmanager
def running_kv_replica(
    number: int,
    model: Path,
    folder: Path,
    ports: tuple[int, int, int] | None = None,
    blocks: int = BLOCKS,
) -> Iterator[KvReplica]:
    """Run a vLLM server with few blocks that publishes KV events.

    `ports`: of the server, its events and their replay, if it is started again.
    """
    folder.mkdir(exist_ok=True)
    port, events, replay = ports or (free_port(), free_port(), free_port())
    flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details")
    limits = ("--num-gpu-blocks-override", str(blocks), "--max-model-len", str(CONTEXT))
    published = kv_events_flags(events, replay)
    with running_vllm(model, folder, *flags, *limits, *published, port=port) as vllm:
        yield KvReplica(number, vllm, events, replay)


class KvIndex:
    """Dynamo's `SelectionService` in a process of its own."""

    def __init__(self, log: Path) -> None:
        assert PYTHON is not None
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, str(INDEX)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def add(self, replica: KvReplica, block_tokens: int = BLOCK_TOKENS) -> None:
        """Subscribe to the events of a replica. The block size must be that of the replica."""
        self.call(
            "upsert_worker",
            {
                "worker_id": replica.number,
                "model_name": NAME,
                "endpoint": replica.vllm.url,
                "block_size": block_tokens,
                "total_kv_blocks": BLOCKS,
                "kv_events_endpoints": {0: f"tcp://127.0.0.1:{replica.events_port}"},
                "replay_endpoint": f"tcp://127.0.0.1:{replica.replay_port}",
            },
        )

    def overlap(self, prompt: list[int], salt: str | None = None) -> dict[int, int]:
        """Return the number of blocks of the prompt that each replica has cached."""
        request = {"model_name": NAME, "token_ids": prompt}
        request |= {"cache_salt": salt} if salt is not None else {}
        workers = self.call("overlap_scores", request)["workers"]
        return {worker["worker_id"]: worker["device_blocks"] for worker in workers}

    def call(self, name: str, argument: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, argument]) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        assert "error" not in reply, reply
        return reply["result"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def expected_cached_tokens(prompt: list[int], blocks: int) -> int:
    """Return the cached tokens that vLLM will report. It always computes the last token."""
    return min(blocks, (len(prompt) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
