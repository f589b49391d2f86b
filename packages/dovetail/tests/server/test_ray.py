"""Frontends in a real, local Ray Serve: streams, sticky sessions, and the death of a frontend.

The engine is scripted: it generates tokens that the tokenizer would not produce for their text, so
that only a turn from the ledger is exact.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from ray_environment import PYTHON, REAL, RayServe, ray_paths, running_ray
from server_process import NAME, Reply, qwen_folder
from workers_fixture import PIECES, body

pytestmark = REAL

ROOT = Path(__file__).parents[4]
HEADER = "x-dovetail-frontend"
#: Session headers of Claude Code, Codex and others: Ray's own router knows only x-session-id.
SESSION_HEADERS = ("x_claude_code_session_id", "session_id", "x_dynamo_session_id", "x_session_id")
RECOVERY_TIMEOUT_SECONDS = 120.0
SLOW = "slow"  # a prompt with this word gets a slow response


@pytest.fixture(scope="module")
def ray() -> Iterator[RayServe]:
    # A short path: Ray's sockets are below it.
    with TemporaryDirectory(prefix="dtray-", dir="/tmp") as scratch:
        folder = Path(scratch)
        script = folder / "script.json"
        slow = {
            "when": {"text": SLOW, "tail": 60},
            "chunks": list(PIECES),
            "delay": {"first": 0, "between": 0.5},
        }
        script.write_text(json.dumps({"rules": [slow, {"chunks": list(PIECES)}]}))
        arguments: dict[str, Any] = {
            "frontends": 2,
            "num_cpus": 0.5,
            "model": str(qwen_folder(folder / "model")),
            "engine": "scripted",
            "script": str(script),
            "served_model_name": NAME,
            "tool_call_parser": "hermes",
            "data_dir": str(folder / "data"),
            "drain_timeout": 10.0,
        }
        with running_ray(folder, arguments) as running:
            yield running


def send(ray: RayServe, text: str, **headers: str) -> Reply:
    reply = ray.server.request("POST", "/v1/messages", body("/v1/messages", text), **headers)
    assert reply.status == 200, reply.body
    return reply


def test_stream_and_errors_are_those_of_the_api(ray: RayServe) -> None:
    request = body("/v1/messages", "Hello.", stream=True)
    name = {"x_request_id": "some-request"}
    with ray.server.open("POST", "/v1/messages", request, **name) as response:
        assert response.headers.get_all("x-request-id") == ["some-request"]
        assert response.headers.get_all("request-id") == ["some-request"]
        events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
    texts = [one["delta"]["text"] for one in events if one["type"] == "content_block_delta"]
    assert len(texts) > 1
    assert "".join(texts) == "".join(PIECES)
    assert events[-1]["type"] == "message_stop"
    reply = ray.server.request("POST", "/v1/messages", {"model": NAME})
    assert (reply.status, reply.json["type"]) == (400, "error")


@pytest.mark.parametrize("header", SESSION_HEADERS)
def test_sessions_are_sticky(ray: RayServe, header: str) -> None:
    homes = set()
    for session in range(8):
        name = {header: f"{header}-{session}"}
        served = {send(ray, f"Turn {at}.", **name).headers[HEADER] for at in range(3)}
        assert len(served) == 1
        homes |= served
    assert len(homes) == 2  # the sessions are distributed


def test_requests_without_a_session_reach_all_frontends(ray: RayServe) -> None:
    served = {send(ray, f"Question {at}.").headers[HEADER] for at in range(12)}
    assert len(served) == 2


def test_killed_frontend_is_replaced_and_its_session_continues_exactly(ray: RayServe) -> None:
    session = {"x_claude_code_session_id": "killed"}
    first = send(ray, "What is the answer?", **session)
    home = first.headers[HEADER]
    messages = [
        {"role": "user", "content": "What is the answer?"},
        {"role": "assistant", "content": first.json["content"]},
        {"role": "user", "content": f"And again, {SLOW}?"},
    ]
    request = {"model": NAME, "max_tokens": 200, "messages": messages}
    before = ray.server.post("/v1/messages/render", request, **session)["token_ids"]
    with ray.server.open(
        "POST", "/v1/messages", {**request, "stream": True}, **session
    ) as response:
        assert response.headers[HEADER] == home
        while b"content_block_delta" not in response.readline():
            pass
        ray.kill(home)
        assert not ends_normally(response)
    reply = retry(ray, request, session)
    assert reply.headers[HEADER] != home
    rendered = ray.server.post("/v1/messages/render", request, **session)["token_ids"]
    assert rendered == before
    generated = [id for piece in PIECES for id in token_ids(ray, piece)]
    assert contains(rendered, generated)
    assert generated != token_ids(ray, "".join(PIECES))
    wait_for_frontends(ray, {home})


def test_streams_of_a_stopped_frontend_are_completed(ray: RayServe) -> None:
    request = body("/v1/messages", f"Be {SLOW}.", stream=True)
    with ExitStack() as streams:
        opened: dict[str, HTTPResponse] = {}
        for at in range(20):  # until each frontend has a stream
            session = {"x_session_id": f"drained-{at}"}
            stream = ray.server.open("POST", "/v1/messages", request, **session)
            response = streams.enter_context(stream)
            opened.setdefault(response.headers[HEADER], response)
            if len(opened) == 2:
                break
        assert len(opened) == 2
        ray.scale(1)
        assert all(map(ends_normally, opened.values()))
    served = {send(ray, f"Question {at}.").headers[HEADER] for at in range(8)}
    assert len(served) == 1
    ray.scale(2)


def test_ray_accepts_the_example() -> None:
    """Ray's own schema reads the file, and the builder accepts its arguments."""
    program = """
import sys, yaml
from ray.serve.schema import ServeDeploySchema
from dovetail.server.ray import build
config = ServeDeploySchema.parse_obj(yaml.safe_load(open(sys.argv[1])))
(application,) = config.applications
assert application.import_path == f"{build.__module__}:{build.__name__}"
build(application.args)
"""
    example = ROOT / "examples" / "ray" / "dovetail.yaml"
    with TemporaryDirectory() as scratch:
        done = subprocess.run(
            [os.environ[PYTHON], "-c", program, str(example)],
            env=ray_paths(Path(scratch)),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def ends_normally(response: HTTPResponse) -> bool:
    try:
        return b"message_stop" in response.read()
    except (HTTPException, OSError):
        return False


def retry(ray: RayServe, request: dict[str, Any], session: dict[str, str]) -> Reply:
    """Send a request again as clients do, until a frontend serves it."""
    until = time.monotonic() + RECOVERY_TIMEOUT_SECONDS
    while True:
        try:
            reply = ray.server.request("POST", "/v1/messages", request, **session)
        except (HTTPException, OSError):
            reply = None
        if reply is not None and reply.status == 200:
            return reply
        assert time.monotonic() < until, None if reply is None else reply.body
        time.sleep(0.5)


def token_ids(ray: RayServe, text: str) -> list[int]:
    found: list[int] = ray.server.post("/v1/tokenize", {"model": NAME, "prompt": text})["tokens"]
    return found


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


def wait_for_frontends(ray: RayServe, gone: set[str]) -> None:
    """Wait until Ray has replaced the killed frontend."""
    until = time.monotonic() + RECOVERY_TIMEOUT_SECONDS
    found: set[str] = set()
    while len(found - gone) < 2:
        assert time.monotonic() < until, found
        reply = ray.server.request("GET", "/live")
        if reply.status == 200:
            found.add(reply.headers[HEADER])
        time.sleep(0.2)
