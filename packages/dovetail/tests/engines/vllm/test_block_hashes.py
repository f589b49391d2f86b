"""The block hashes of the render endpoints equal those in the KV events of a real vLLM."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kv_events import kv_events_flags, read_kv_events, stored_hashes
from server_process import Running, free_port, served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import NAME, REAL, running_vllm

pytestmark = [*REAL, pytest.mark.fleet]

BLOCK = 32  # of the flags of `running_vllm`
SALTS = (None, "a salt of the client")


@dataclass(frozen=True)
class Setup:
    """How vLLM computes and publishes its hashes, and the query for the same hashes."""

    flags: tuple[str, ...]
    environment: dict[str, str]
    query: str
    field: str


SETUPS = {
    "default": Setup((), {}, "block_hashes=vllm-sha256", "block_hashes"),
    "bytes": Setup(
        ("--prefix-caching-hash-algo", "sha256_cbor"),
        {"PYTHONHASHSEED": "7", "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"},
        "block_hashes=vllm-sha256_cbor&seed=7",
        "digests",
    ),
}


@pytest.fixture(scope="module", params=SETUPS)
def setup(request: pytest.FixtureRequest) -> Setup:
    return SETUPS[request.param]


@pytest.fixture(scope="module")
def engine(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A vLLM that publishes its events: its URL, and the port of the replay."""
    folder = tmp_path_factory.mktemp("vllm")
    model = tiny_qwen3(Path(folder) / "model")
    port, replay_port = free_port(), free_port()
    flags = ("--served-model-name", NAME, *kv_events_flags(port, replay_port), *setup.flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONHASHSEED", raising=False)
        for name, value in setup.environment.items():
            patch.setenv(name, value)
        with running_vllm(model, Path(folder), *flags) as vllm:
            yield vllm.url, replay_port


@pytest.fixture(scope="module")
def server(engine: tuple[str, int]) -> Iterator[Running]:
    with served("--engine", "vllm", "--engine-url", engine[0]) as running:
        yield running


def conversation(first: dict[str, Any] | None, salt: str | None) -> dict[str, Any]:
    """Return a request of the Messages API, or the one that continues its response."""
    question = {"role": "user", "content": "apple river stone green " * 60}
    body: dict[str, Any] = {"model": NAME, "max_tokens": 40, "messages": [question]}
    if salt is not None:
        body["nvext"] = {"cache_salt": salt}
    if first is not None:
        body["messages"] = [
            question,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": "seven cloud paper light " * 20},
        ]
    return body


@pytest.mark.parametrize("salt", SALTS)
def test_hashes_equal_those_of_the_events(
    setup: Setup, engine: tuple[str, int], server: Running, salt: str | None
) -> None:
    path = f"/v1/messages/render?{setup.query}&block_size={BLOCK}"
    rendered = []
    first = None
    for _ in range(2):
        body = conversation(first, salt)
        rendered.append(server.post(path, body))
        before = len(read_kv_events(engine[1]))
        assert not set(rendered[-1]["hashes"][setup.field]) <= set(
            stored_hashes(read_kv_events(engine[1]))
        )
        first = server.post("/v1/messages", body)
        assert len(read_kv_events(engine[1])) > before
    found = stored_hashes(read_kv_events(engine[1]))
    for one in rendered:
        hashes = one["hashes"][setup.field]
        assert len(hashes) == one["count"] // BLOCK > 3
        assert [found.get(key) for key in hashes] == [BLOCK * (at + 1) for at in range(len(hashes))]
