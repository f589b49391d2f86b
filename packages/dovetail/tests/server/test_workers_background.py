"""Responses that another worker runs or stores, with real processes."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import openai
import pytest
from openai import OpenAI
from server_process import NAME, TIMEOUT_SECONDS
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from workers_fixture import PIECES, children, count, numbers, serve_with_workers, wait_until

pytestmark = pytest.mark.long

CLOSE = {"connection": "close"}  # the next connection may reach another worker
COUNT = 8  # connections: one of two workers gets all of them only once in 128 runs
RUNNING = "dovetail_background_responses"


def begun(client: OpenAI) -> str:
    made = client.responses.create(model=NAME, input="Hi", background=True, extra_headers=CLOSE)
    return made.id


def followed(client: OpenAI, together: Barrier, id: str) -> tuple[list[int], str, str]:
    """Numbers of frames, text and last event of a stream that is left and resumed."""
    seen, text, last = [0], "", ""
    for limit in (3, None):
        with client.responses.retrieve(
            id, stream=True, starting_after=seen[-1], extra_headers=CLOSE
        ) as stream:
            if limit is not None:
                together.wait(TIMEOUT_SECONDS)
            for event in stream:
                seen.append(event.sequence_number)
                last = event.type
                text += event.delta if event.type == "response.output_text.delta" else ""
                if len(seen) == limit:
                    break
    return seen, text, last


def test_response_is_followed_cancelled_and_deleted_from_any_worker(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path, decode_rate=10.0) as running:
        client = running.openai()
        id, together = begun(client), Barrier(COUNT)
        with ThreadPoolExecutor(COUNT) as threads:
            followed_streams = list(threads.map(partial(followed, client, together), [id] * COUNT))
        whole = client.responses.retrieve(id, extra_headers=CLOSE).output_text
        assert whole == "".join(PIECES)
        for seen, text, last in followed_streams:
            assert seen == list(range(len(seen)))
            assert (text, last) == (whole, "response.completed")
        for _ in range(COUNT):
            id = begun(client)
            wait_until(lambda: sum(numbers(running, RUNNING).values()) == 1)
            assert client.responses.cancel(id, extra_headers=CLOSE).status == "cancelled"
            assert sum(numbers(running, RUNNING).values()) == 0
            for _ in range(3):
                found = client.responses.retrieve(id, extra_headers=CLOSE)
                assert found.status == "cancelled"
            client.responses.delete(id, extra_headers=CLOSE)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(id, stream=True, extra_headers=CLOSE)


def test_stream_of_a_killed_worker_fails_for_all_followers(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path, decode_rate=2.0) as running:
        client, together = running.openai(), Barrier(COUNT + 1)

        def follow(id: str) -> str:
            with client.responses.retrieve(id, stream=True, extra_headers=CLOSE) as stream:
                together.wait(TIMEOUT_SECONDS)
                try:
                    return [event.type for event in stream][-1]
                except openai.APIConnectionError:
                    return "broken"

        id = begun(client)
        with ThreadPoolExecutor(COUNT) as threads:
            followed_streams = threads.map(follow, [id] * COUNT)
            together.wait(TIMEOUT_SECONDS)
            (maker,) = [at for at, runs in numbers(running, RUNNING).items() if runs]
            os.kill(children(running)[int(maker)], signal.SIGKILL)
            assert set(followed_streams) == {"broken"}
        wait_until(lambda: count(running) == 2)


def request_response(socket: Connection, **more: Any) -> dict[str, Any]:
    """Return the last event of a response."""
    body = {"type": "response.create", "model": NAME, "input": "Hi", **more}
    socket.send(json.dumps(body))
    while True:
        event: dict[str, Any] = json.loads(socket.recv(TIMEOUT_SECONDS))
        if event["type"] in ("response.completed", "error"):
            return event


def test_deleted_response_cannot_be_continued_on_any_websocket(tmp_path: Path) -> None:
    with serve_with_workers(tmp_path) as running, ExitStack() as open_sockets:
        client = running.openai()
        url = f"{running.url.replace('http', 'ws', 1)}/v1/responses"
        sockets = [open_sockets.enter_context(connect(url, proxy=None)) for _ in range(COUNT)]
        ids = [request_response(socket, store=True)["response"]["id"] for socket in sockets]
        later = [
            request_response(socket, store=False, previous_response_id=id)["response"]["id"]
            for socket, id in zip(sockets, ids, strict=True)
        ]
        for id in ids:
            client.responses.delete(id, extra_headers=CLOSE)
        for socket, *held in zip(sockets, ids, later, strict=True):
            for id in held:
                error = request_response(socket, previous_response_id=id)["error"]
                assert error["code"] == "previous_response_not_found"
