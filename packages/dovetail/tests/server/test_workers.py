"""Several worker processes on one port: load balancing, drain, crashes and restarts."""

import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPException
from pathlib import Path
from threading import Barrier

import pytest
from openai import OpenAI
from server_process import (
    NAME,
    TIMEOUT_SECONDS,
    Running,
    clean_environment,
    dovetail,
    free_port,
    qwen_folder,
    served,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from workers_fixture import (
    PATHS,
    PIECES,
    arguments,
    body,
    children,
    count,
    is_gone,
    numbers,
    serve_with_workers,
    wait_until,
)

from dovetail.server.build import LEDGER_FILE

ENDS = {
    "/v1/messages": b"event: message_stop",
    "/v1/chat/completions": b"data: [DONE]",
    "/v1/responses": b"event: response.completed",
    "a WebSocket": b'"type":"response.completed"',
}
SOCKET = "a WebSocket"
ALL = (*PATHS, SOCKET)
LAST = PIECES[-1].encode()
HOST = "dovetail.server.engine_host"
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serve_with_workers(tmp_path_factory.mktemp("crew")) as running:
        yield running


class Streams:
    """Streams of all three APIs, all of which have started."""

    def __init__(self, running: Running, count: int, ways: Sequence[str] = ALL) -> None:
        self._running = running
        self._begun = Barrier(count + 1)
        self._threads = ThreadPoolExecutor(count)
        self._read: list[tuple[str, Future[bytes]]] = []
        for at in range(count):
            path = ways[at % len(ways)]
            self._read.append((path, self._threads.submit(self._follow, path)))
        self._begun.wait(TIMEOUT_SECONDS)

    def ends(self) -> list[tuple[str, bytes]]:
        """Return everything that each stream received."""
        ends = [(path, read.result(TIMEOUT_SECONDS)) for path, read in self._read]
        self._threads.shutdown()
        return ends

    def _follow_socket(self) -> bytes:
        """Read a response over a WebSocket. Returns its messages and the close code."""
        url = self._running.url.replace("http", "ws", 1)
        with connect(f"{url}/v1/responses", proxy=None) as socket:
            message = {"type": "response.create", **body("/v1/responses", "Speak.")}
            socket.send(json.dumps(message))
            text = [socket.recv(TIMEOUT_SECONDS)]
            self._begun.wait(TIMEOUT_SECONDS)
            try:
                while True:
                    text.append(socket.recv(TIMEOUT_SECONDS))
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd is not None else None
            return f"{''.join(map(str, text))}<closed {code}>".encode()

    def _follow(self, path: str) -> bytes:
        if path == SOCKET:
            return self._follow_socket()
        with self._running.open("POST", path, body(path, "Speak.", stream=True)) as response:
            text = response.read1()
            self._begun.wait(TIMEOUT_SECONDS)
            try:
                while more := response.read1():
                    text += more
            except (OSError, HTTPException):
                return text + b"<broken>"
            return text


def is_whole(path: str, text: bytes) -> bool:
    return LAST in text and ENDS[path] in text and b"<broken>" not in text


def test_connections_are_spread_and_any_worker_serves_merged_metrics(running: Running) -> None:
    before = sum(numbers(running, "dovetail_requests_total").values())
    for at in range(60):
        running.post(PATHS[at % 3], body(PATHS[at % 3], f"{at}"))
    for _ in range(4):  # of any worker
        taken = numbers(running, "dovetail_requests_total")
        assert sum(taken.values()) == before + 60
        assert set(taken) == {"0", "1"}
        assert min(taken.values()) > 10
    text = running.request("GET", "/metrics").body.decode()
    assert text.count("# TYPE dovetail_requests_total counter") == 1


def test_one_engine_serves_all_workers(running: Running) -> None:
    assert len(children(running)) == 2
    assert len(children(running, HOST)) == 1
    health = running.request("GET", "/health").json
    assert [engine["engine"] for engine in health["engines"]] == ["scripted"]


def test_stored_response_is_found_on_every_worker(running: Running) -> None:
    client = running.openai()
    for _ in range(10):
        made = client.responses.create(model=NAME, input="Hi", extra_headers=CLOSE)
        found = client.responses.retrieve(made.id, extra_headers=CLOSE)
        assert found.output_text == made.output_text
        more = client.responses.create(
            model=NAME, input="More", previous_response_id=made.id, extra_headers=CLOSE
        )
        assert more.usage is not None
        assert made.usage is not None
        assert more.usage.input_tokens > made.usage.input_tokens + made.usage.output_tokens


CLOSE = {"connection": "close"}  # the next connection may reach another worker


@pytest.mark.long
def test_killed_worker_is_replaced_and_the_others_continue(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path, decode_rate=10.0) as running:
        streams = Streams(running, 18, PATHS)
        victim = children(running)[0]
        os.kill(victim, signal.SIGKILL)
        ends = streams.ends()
        whole = [is_whole(path, text) for path, text in ends]
        broken = [text for (path, text), one in zip(ends, whole, strict=True) if not one]
        assert 0 < len(broken) < 18
        assert not any(end in text for text in broken for end in ENDS.values())
        wait_until(lambda: count(running) == 2)
        assert victim not in children(running)
        assert "worker_crashed" in running.log.read_text()
        assert sorted(numbers(running, "dovetail_worker_restarts_total").values()) == [0, 1]
        for path in PATHS:
            running.post(path, body(path, "Again."))


@LONG
def test_killed_engine_is_restarted_for_all_workers(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path) as running:
        os.kill(children(running, HOST)[0], signal.SIGKILL)
        wait_until(
            lambda: "engine_host_crashed model=0 exit_status=SIGKILL" in running.log.read_text()
        )
        wait_until(lambda: len(children(running, HOST)) == 1)
        wait_until(lambda: all(running.request("GET", "/ready").status == 200 for _ in range(8)))
        for at in range(8):
            assert running.request("POST", PATHS[0], body(PATHS[0], f"{at}")).status == 200


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=LONG)])
def test_drain_loses_nothing(tmp_path: Path, workers: int) -> None:
    with serve_with_workers(tmp_path, workers=workers, decode_rate=10.0) as running:
        pids = [*children(running), *children(running, HOST)]
        streams = Streams(running, 24)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: running.request("GET", "/ready").status == 503)
        if workers > 1:  # each worker gets its own signal
            wait_until(lambda: sum(numbers(running, "dovetail_draining").values()) == workers)
        for path in PATHS:
            for stream in (False, True):
                reply = running.request("POST", path, body(path, "Too late.", stream=stream))
                assert reply.status == 503
                assert int(reply.headers["retry-after"]) > 0
                assert reply.headers["connection"] == "close"
        assert running.request("GET", "/live").status == 200
        ends = streams.ends()
        assert [is_whole(path, text) for path, text in ends] == [True] * 24
        assert all(text.endswith(b"<closed 1012>") for path, text in ends if path == SOCKET)
        assert running.process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
        wait_until(lambda: all(map(is_gone, pids)))
        assert "Traceback" not in running.log.read_text()
    with closing(sqlite3.connect(tmp_path / "home" / LEDGER_FILE)) as turns:
        assert turns.execute("SELECT entries FROM totals").fetchone() == (24,)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=LONG)])
@pytest.mark.parametrize("why", [pytest.param("deadline", marks=LONG), "second signal"])
def test_aborted_streams_end_with_an_error(tmp_path: Path, workers: int, why: str) -> None:
    timeout = "0" if why == "deadline" else "300"
    slow = {"workers": workers, "decode_rate": 0.5}
    with serve_with_workers(tmp_path, "--drain-timeout", timeout, **slow) as running:
        streams = Streams(running, 8)
        running.process.send_signal(signal.SIGINT if why == "deadline" else signal.SIGTERM)
        if why == "second signal":
            wait_until(lambda: running.request("GET", "/ready").status == 503)
            running.process.send_signal(signal.SIGTERM)
        for path, text in streams.ends():
            assert b"stopped before the response was complete" in text
            assert not is_whole(path, text)
        status = running.process.wait(TIMEOUT_SECONDS)
        assert status == (130 if why == "deadline" else -signal.SIGTERM)


@LONG
def test_workers_exit_with_their_parent(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path) as running:
        pids = [*children(running), *children(running, HOST)]
        assert len(pids) == 3
        running.process.kill()
        running.process.wait(TIMEOUT_SECONDS)
        wait_until(lambda: all(map(is_gone, pids)))


@LONG
def test_keys_are_reloaded_by_every_worker(tmp_path: Path) -> None:
    old, new = hashlib.sha256(b"old").hexdigest(), hashlib.sha256(b"new").hexdigest()
    keys = tmp_path / "keys"
    keys.write_text(f"team:{old}\n")
    with serve_with_workers(tmp_path, "--api-key-file", keys) as running:
        assert running.request("GET", "/v1/models", x_api_key="old").status == 200
        keys.write_text(f"team:{new}\n")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: _all_return(running, "new", 200) and _all_return(running, "old", 401))
        assert len(children(running)) == 2


def _all_return(running: Running, key: str, status: int) -> bool:
    return all(
        running.request("GET", "/v1/models", x_api_key=key).status == status for _ in range(12)
    )


@pytest.mark.long
def test_limit_is_shared_by_all_workers(tmp_path: Path) -> None:
    limit = ("--api-key", "secret", "--rate-limit-requests", "6")
    with serve_with_workers(tmp_path, *limit) as running:
        statuses = [
            running.request("POST", PATHS[0], body(PATHS[0], f"{at}"), x_api_key="secret").status
            for at in range(20)
        ]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) <= 7  # the six of a minute, and those refilled meanwhile


def test_invalid_settings_are_reported_at_once(tmp_path: Path) -> None:
    refused = dovetail("serve", *arguments(tmp_path, "--store", "memory"), home=tmp_path)
    assert refused.status == 1
    assert "--workers" in refused.err
    absent = [*arguments(tmp_path, "--http-port", "0")]
    absent[absent.index("--script") + 1] = tmp_path / "absent.yaml"
    failed = dovetail("serve", *absent, home=tmp_path)
    assert failed.status == 1
    assert "absent.yaml" in failed.err
    assert "an engine could not be started" in failed.err


def test_server_that_waits_for_its_engine_can_be_stopped(tmp_path: Path) -> None:
    nowhere = ("--engine-url", f"http://127.0.0.1:{free_port()}", "--engine-wait", "300")
    command = [sys.executable, "-m", "dovetail", "serve", "--engine", "vllm", *nowhere]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "--workers", "2", "--http-port", "0"],
            env=clean_environment(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            wait_until(lambda: "engine_discovery_failed" in (tmp_path / "log").read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
        finally:
            process.kill()
            process.wait()


@LONG
def test_workers_that_crash_at_every_start_stop_the_server(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path) as running:
        (tmp_path / "model").rename(tmp_path / "moved")
        for pid in children(running):
            os.kill(pid, signal.SIGKILL)
        assert running.process.wait(2 * TIMEOUT_SECONDS) == 1
        assert "the workers crash as soon as they are started" in running.log.read_text()


@LONG
def test_each_model_has_one_engine_for_all_workers(tmp_path: Path) -> None:
    model, outputs = qwen_folder(tmp_path / "model"), {"one": "I am one.", "two": "I am two."}
    tables = []
    for name, text in outputs.items():
        (tmp_path / f"{name}.txt").write_text(text)
        script = tmp_path / f"{name}.txt"
        tables.append(
            f'[[models]]\nmodel = "{model}"\nserved-model-name = "{name}"\n'
            f'engine = "scripted"\nscript = "{script}"\n'
        )
    (tmp_path / "dovetail.toml").write_text("\n".join(tables))
    with served("--config", tmp_path / "dovetail.toml", "--workers", "2") as running:
        assert len(children(running, HOST)) == 2
        for name, text in list(outputs.items()) * 4:
            request = {**body(PATHS[1], "Who are you?"), "model": name}
            assert running.post(PATHS[1], request)["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=LONG)])
def test_service_manager_is_notified_of_start_and_stop(tmp_path: Path, workers: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_SECONDS)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with served(*arguments(tmp_path, workers=workers), environment=environment) as running:
            assert manager.recv(100) == b"READY=1"
            running.stop()
            assert manager.recv(100) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)  # it is sent once


@LONG
def test_background_response_is_followed_and_cancelled_from_any_worker(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path, decode_rate=5.0) as running:
        client = running.openai()
        for _ in range(4):
            made = client.responses.create(
                model=NAME, input="Hi", background=True, extra_headers=CLOSE
            )
            seen = [client.responses.retrieve(made.id, extra_headers=CLOSE) for _ in range(6)]
            assert {one.status for one in seen} <= {"queued", "in_progress"}
            wait_until(partial(_is_complete, client, made.id))
        made = client.responses.create(model=NAME, input="Hi", background=True, extra_headers=CLOSE)
        for _ in range(6):
            client.responses.cancel(made.id, extra_headers=CLOSE)
        wait_until(lambda: {_status(client, made.id) for _ in range(6)} == {"cancelled"})


def _is_complete(client: OpenAI, id: str) -> bool:
    return _status(client, id) == "completed"


def _status(client: OpenAI, id: str) -> str | None:
    return client.responses.retrieve(id, extra_headers=CLOSE).status
