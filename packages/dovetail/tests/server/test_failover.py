"""Replicas killed while streams run: real processes, killed with -9, behind a real server.

The replicas are scripted engines with vLLM's protocol, so that every text is known. A prompt that
ends with the beginning of a response is continued, as a model would do.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from threading import Barrier, Event
from time import monotonic
from typing import Any
from urllib.request import urlopen

import pytest
from server_process import NAME, Running, qwen_folder, served

STREAMS = 50
WORDS = [f"word{number}" for number in range(120)]
TEXT = " ".join(WORDS)
PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses")


@dataclass
class Replica:
    process: "subprocess.Popen[str]"
    url: str

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@contextmanager
def replicas(folder: Path, count: int, script: str = TEXT) -> Iterator[list[Replica]]:
    """Scripted engines in separate processes, fast enough for many concurrent streams."""
    path = folder / "script.yaml"
    path.write_text(json.dumps([{"text": script}]))
    model = qwen_folder(folder / "model")
    with ExitStack() as stack:
        yield [stack.enter_context(_replica(path, model)) for _ in range(count)]


@contextmanager
def _replica(script: Path, model: Path, port: str = "0") -> Iterator[Replica]:
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", script]
    options = ["--model", model, "--served-model-name", NAME, "--port", port]
    pace = ["--decode-rate", "60", "--continues"]
    process = subprocess.Popen(
        list(map(str, [*command, *options, *pace])), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            yield Replica(process, process.stdout.readline().split()[-1])
        finally:
            if process.poll() is None:
                process.terminate()


@contextmanager
def in_front_of(behind: list[Replica], folder: Path, *more: str) -> Iterator[Running]:
    urls = [part for replica in behind for part in ("--engine-url", replica.url)]
    with served("--engine", "vllm", *urls, "--tokenizer", folder / "model", *more) as running:
        yield running


def body_for(path: str, number: int) -> dict[str, Any]:
    question = f"Question {number}"
    if path == "/v1/responses":
        return {"model": NAME, "input": question, "stream": True}
    limits = {"max_tokens": 2000} if path == "/v1/messages" else {}
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        **limits,
    }


def frames(response: HTTPResponse) -> Iterator[Any]:
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def text_of(frame: Any) -> str:
    """Return the text that a frame of any of the three APIs adds."""
    if frame.get("type") == "content_block_delta":
        return str(frame["delta"].get("text", ""))
    if frame.get("type") == "response.output_text.delta":
        return str(frame["delta"])
    choices = frame.get("choices") or []
    return str(choices[0]["delta"].get("content") or "") if choices else ""


def is_failure(frame: Any) -> bool:
    return frame.get("type") in ("error", "response.failed") or "error" in frame


@dataclass
class StreamResult:
    text: str
    failures: int
    ended: bool


def is_end(frame: Any) -> bool:
    if frame.get("type") in ("message_stop", "response.completed"):
        return True
    return any(choice.get("finish_reason") for choice in frame.get("choices") or [])


def listen(running: Running, number: int, begun: Barrier, killed: Event) -> StreamResult:
    """Read one stream to its end. All streams have started before the replica is killed."""
    path = PATHS[number % len(PATHS)]
    result = StreamResult("", 0, False)
    waited = False
    with running.open("POST", path, body_for(path, number)) as response:
        assert response.status == 200
        for frame in frames(response):
            result.text += text_of(frame)
            result.failures += is_failure(frame)
            result.ended = result.ended or is_end(frame)
            if result.text and not waited:
                waited = True
                begun.wait(60)
                assert killed.wait(60)
    return result


def play(
    running: Running, victim: Replica, then: Callable[[], object] = lambda: None
) -> list[StreamResult]:
    """Run all streams concurrently; when each has produced output, kill the victim."""
    begun, killed = Barrier(STREAMS + 1), Event()
    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(listen, running, at, begun, killed) for at in range(STREAMS)]
        begun.wait(60)
        victim.kill()
        then()
        killed.set()
        return [stream.result(90) for stream in streams]


def counted(running: Running, name: str) -> float:
    page = running.request("GET", "/metrics").body.decode()
    values = [line.split()[-1] for line in page.splitlines() if line.startswith(name)]
    return sum(map(float, values))


def test_streams_of_a_killed_replica_migrate_to_the_other(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (first, second), in_front_of([first, second], tmp_path) as front:
        result = play(front, first)
        moved = counted(front, "dovetail_migrations_total")
        again = front.request("GET", "/health").json
    assert [one.text for one in result] == [TEXT] * STREAMS
    assert all(one.ended and not one.failures for one in result)
    assert STREAMS // 4 <= moved <= STREAMS  # the streams of the killed replica
    assert "1 of 2 replicas are ready" in again["engines"][0]["detail"]


@pytest.mark.long
def test_without_another_replica_each_stream_gets_a_proper_error(tmp_path: Path) -> None:
    wait = ("--recovery-wait", "0.5")
    with replicas(tmp_path, 1) as (only,), in_front_of([only], tmp_path, *wait) as front:
        result = play(front, only)
        later = front.request("POST", "/v1/messages", body_for("/v1/messages", 99))
        health = front.request("GET", "/health")
    assert all(one.failures == 1 and not one.ended for one in result)
    assert all(TEXT.startswith(one.text) and one.text for one in result)
    assert later.status == 503
    assert health.status == 503


@pytest.mark.long
def test_streams_continue_when_their_only_replica_recovers(tmp_path: Path) -> None:
    with replicas(tmp_path, 1) as (only,), ExitStack() as stack:
        port = only.url.rpartition(":")[2]
        again = _replica(tmp_path / "script.yaml", tmp_path / "model", port)
        with in_front_of([only], tmp_path) as front:
            result = play(front, only, then=lambda: stack.enter_context(again))
            moved = counted(front, "dovetail_migrations_total")
    assert [one.text for one in result] == [TEXT] * STREAMS
    assert all(one.ended and not one.failures for one in result)
    assert moved == STREAMS


@pytest.mark.long
def test_migration_limit_of_zero_disables_migration(tmp_path: Path) -> None:
    limit = ("--migration-limit", "0")
    with (
        replicas(tmp_path, 2) as (first, second),
        in_front_of([first, second], tmp_path, *limit) as front,
    ):
        result = play(front, first)
    broken = [one for one in result if one.failures]
    assert STREAMS // 4 <= len(broken) < STREAMS
    assert all(one.text == TEXT for one in result if not one.failures)


@pytest.mark.long
def test_guided_stream_cannot_be_migrated(tmp_path: Path) -> None:
    """The new engine cannot resume the state of the grammar, so the stream ends with an error."""
    call = '<tool_call>\n{"name": "look_up", "arguments": {"city": "' + TEXT + '"}}\n</tool_call>'
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "look_up", "input_schema": schema}
    demand = {"tools": [tool], "tool_choice": {"type": "any"}, "thinking": {"type": "disabled"}}
    with (
        replicas(tmp_path, 2, call) as both,
        # The script follows no grammar, which the probe would detect, so the probe is disabled.
        in_front_of(both, tmp_path, "--engine-option", "probe=false") as front,
        front.open(
            "POST",
            "/v1/messages",
            {**body_for("/v1/messages", 0), **demand},
            x_session_id="one",
        ) as response,
    ):
        seen = []
        for frame in frames(response):
            seen.append(frame)
            if len(seen) == 10:
                for replica in both:
                    if _has_work(replica):
                        replica.kill()
    assert seen[-1]["type"] == "error"


def _has_work(replica: Replica) -> bool:
    """Whether a replica has running requests, according to vLLM's metrics."""
    with urlopen(f"{replica.url}/metrics") as page:
        lines = page.read().decode().splitlines()
    running = next(line for line in lines if line.startswith("vllm:num_requests_running"))
    return float(running.split()[-1]) > 0


@pytest.mark.long
def test_recovered_replica_is_used_again(tmp_path: Path) -> None:
    """Kill the first replica, so that the second gets all requests.

    When the first has recovered, kill the second: further output can only come from the first.
    """
    with (
        replicas(tmp_path, 2, "Hello.") as (first, second),
        in_front_of([first, second], tmp_path) as front,
    ):
        first.kill()
        assert [request_text(front, number) for number in range(3)] == ["Hello."] * 3
        port = first.url.rpartition(":")[2]
        with _replica(tmp_path / "script.yaml", tmp_path / "model", port):
            wait_for(front, 2)
            second.kill()
            assert [request_text(front, number) for number in range(3, 6)] == ["Hello."] * 3


def request_text(front: Running, number: int) -> str:
    path = PATHS[number % len(PATHS)]
    with front.open("POST", path, body_for(path, number)) as response:
        assert response.status == 200
        return "".join(map(text_of, frames(response)))


def wait_for(front: Running, ready: int) -> None:
    """Wait until the log reports that a replica has recovered, which health alone does not show."""
    deadline = monotonic() + 60
    while "replica_recovered" not in front.log.read_text():
        assert monotonic() < deadline
    assert f"{ready} of 2" in front.request("GET", "/health").json["engines"][0]["detail"]
