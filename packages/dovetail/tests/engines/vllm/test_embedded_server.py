"""`dovetail serve FOLDER --engine vllm` as users run it, with the real vLLM on the CPU."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness_programs import claude_code
from kv_events import read_kv_events, stored_hashes
from sdk_conversations import APIS, TurnResult, start_conversation
from server_process import Running, free_port, served
from tiny_qwen3 import tiny_lora, tiny_qwen3
from vllm_environment import ENVIRONMENT, PYTHON, REAL
from workers_fixture import wait_until

pytestmark = REAL

BLOCK = 32
TURNS = 6
LIMIT = 24  # output tokens of Claude Code's responses
_LINE = re.compile(r"endpoint=messages status=200.*? input=(\d+) output=(\d+) cached=(\d+)")


@pytest.fixture(scope="module")
def replay_port() -> int:
    """The port at which vLLM replays its KV events."""
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, replay_port: int) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    model = tiny_qwen3(folder / "tiny-qwen3")
    settings = folder / "dovetail.toml"
    settings.write_text(
        f'model = "{model}"\n[engine]\nname = "vllm"\npython = "{os.environ[PYTHON]}"\n'
        f'dtype = "float32"\nenforce_eager = true\nblock_size = {BLOCK}\nmax_num_seqs = 32\n'
        f'max_lora_rank = 8\nlora_modules = {{ poet = "{tiny_lora(folder / "poet", 1)}" }}\n'
        'kv_events_config = { enable_kv_cache_events = true, publisher = "zmq", '
        f'endpoint = "tcp://*:{free_port()}", replay_endpoint = "tcp://*:{replay_port}" }}\n'
    )
    environment = {**ENVIRONMENT, "DOVETAIL_CONFIG": str(settings)}
    with served(environment=environment) as running:
        yield running


def tool_loop(server: Running, api: str) -> list[TurnResult]:
    conversation = start_conversation(server, api, "tiny-qwen3", f"loop-{api}", limit=200)
    turns = [conversation.send(f"Look it up with {api}.", must_call=True)]
    while len(turns) < TURNS:
        turns.append(conversation.send_result(f"Result {len(turns)}: é 漢字 🦜", must_call=True))
    return turns


def test_each_turn_is_the_cached_prefix_of_the_next(server: Running) -> None:
    """Qwen3's template keeps the turns of a tool loop, and a grammar sets the form of the calls."""
    with ThreadPoolExecutor(len(APIS)) as threads:
        sessions = list(threads.map(lambda api: tool_loop(server, api), APIS))
    for turns in sessions:
        assert all(len(turn.calls) == 1 for turn in turns)
        for before, after in pairwise(turns):
            assert after.cached >= (before.input + before.output - 1) // BLOCK * BLOCK


def test_the_log_states_how_the_output_arrives(server: Running) -> None:
    log = server.log.read_text()
    assert "engine_loading" in log
    assert re.search(r"engine_loaded .*output=steps", log)


def chat(server: Running, model: str) -> Any:
    body = {
        "model": model,
        "max_tokens": 12,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Write a line."}],
    }
    return server.post("/v1/chat/completions", body)


def test_an_adapter_is_a_model(server: Running) -> None:
    listed = [one["id"] for one in server.request("GET", "/v1/models").json["data"]]
    assert {"tiny-qwen3", "poet"} <= set(listed)
    base, poet, again = (chat(server, name) for name in ("tiny-qwen3", "poet", "tiny-qwen3"))
    message = ("choices", 0, "message")
    texts = [one[message[0]][message[1]][message[2]] for one in (base, poet, again)]
    assert texts[0] == texts[2] != texts[1]
    assert poet["model"] == "poet"


def test_a_json_schema_is_enforced(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    body = {
        "model": "tiny-qwen3",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Yes or no?"}],
        "response_format": form,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    message = server.post("/v1/chat/completions", body)["choices"][0]["message"]
    assert json.loads(message["content"])["answer"] in ("yes", "no")


@pytest.mark.parametrize("salt", [None, "a tenant"])
def test_vllm_publishes_its_kv_events(server: Running, replay_port: int, salt: str | None) -> None:
    """The blocks of the events are those that the render endpoint predicts for the prompt."""
    body: dict[str, Any] = {
        "model": "tiny-qwen3",
        "max_tokens": 40,
        "messages": [{"role": "user", "content": "apple river stone green " * 60}],
    }
    if salt is not None:
        body["nvext"] = {"cache_salt": salt}
    query = f"block_hashes=vllm-sha256&block_size={BLOCK}"
    hashes = server.post(f"/v1/messages/render?{query}", body)["hashes"]["block_hashes"]
    assert len(hashes) > 5
    assert hashes[-1] not in stored_hashes(read_kv_events(replay_port))
    server.post("/v1/messages", body)
    found = stored_hashes(read_kv_events(replay_port))
    assert [found.get(key) for key in hashes] == [BLOCK * (at + 1) for at in range(len(hashes))]


def test_metrics_show_the_engine(server: Running) -> None:
    chat(server, "tiny-qwen3")
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    for name in ("requests_running", "requests_waiting", "kv_cache_usage"):
        assert [line for line in lines if re.match(rf"dovetail_engine_{name}\b.* [\d.e-]+$", line)]


def test_a_disconnect_aborts_the_generation(server: Running) -> None:
    body = {
        "model": "tiny-qwen3",
        "max_tokens": 20_000,
        "stream": True,
        "messages": [{"role": "user", "content": "Go on."}],
    }
    with server.open("POST", "/v1/chat/completions", body) as response:
        response.readline()
        assert _running_requests(server) == 1
    deadline = time.monotonic() + 20
    while _running_requests(server):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _running_requests(server: Running) -> int:
    found = re.search(r'"running":\s*(\d+)', server.request("GET", "/health").body.decode())
    assert found is not None
    return int(found[1])


def test_claude_code(server: Running, tmp_path: Path) -> None:
    """The weights are random, so Claude Code gets truncated noise and gives up, as with a URL."""
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    limit = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(LIMIT)}
    done = claude_code(tmp_path, server.url, "tiny-qwen3", "Hello", status=1, **limit)
    assert (
        f"exceeded the {LIMIT} output token maximum" in json.loads(done.splitlines()[-1])["result"]
    )
    requests = [tuple(map(int, found)) for found in _LINE.findall(server.log.read_text())]
    session = [one for one in requests if one[0] > 10_000]
    assert len(session) > 2
    for (before, _, _), (prompt, _, cached) in pairwise(session):
        assert prompt > before
        assert cached >= (before - 1) // BLOCK * BLOCK


def test_a_drained_server_ends_its_streams_and_its_engine(server: Running) -> None:
    """This is the last test: the server exits after the response, and its processes with it."""
    body = {
        "model": "tiny-qwen3",
        "max_tokens": 400,
        "temperature": 0,
        "stream": True,
        "messages": [{"role": "user", "content": "Go on."}],
    }
    group = engine_process(server.process.pid)
    assert len(running_processes(group)) > 1  # the engine core is a process of its own
    with server.open("POST", "/v1/chat/completions", body) as response:
        response.readline()
        server.process.terminate()
        assert '"finish_reason":"length"' in response.read().decode()
    assert server.process.wait(60) == -signal.SIGTERM
    wait_until(lambda: not running_processes(group))


def engine_process(parent: int) -> int:
    """Return the id of the child process, which is also the id of its group."""
    (found,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(found)


def running_processes(group: int) -> list[str]:
    """Return the names of a group's processes. Zombies, which await their parent, do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has exited
            name, _, fields = stat.read_text(errors="replace").rpartition(")")
            state, _, process_group = fields.split()[:3]
            if int(process_group) == group and state != "Z":
                found.append(name)
    return found
