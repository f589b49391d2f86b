"""Thousands of streams and a session of hundreds of turns, on a server of their own: flat memory.

The memory of the server process is compared with itself after a first part of the run. The caches
of the server are small here (`soak_server`), so that they are full by then.
"""

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from abuse_clients import open_files, resident
from server_process import NAME, Running, qwen_folder, served
from soak_streams import APIS, stream_many
from websocket_fixture import request_response, send_request
from websockets.asyncio.client import connect

STREAMS, TURNS = 20_000, 500
ROOM = 8 << 20  # bytes that allocators and the pages of the store may still take
TURN_ROOM = 8 << 10  # bytes per turn: the client's copy, the ids of the prompt, cached data
OUTPUT = (
    "<think>\nThe next part.\n</think>\n\nI look.\n\n<tool_call>\n"
    '{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>'
)
TOOL = {"name": "run", "input_schema": {"type": "object", "properties": {"command": {}}}}
PROGRAM = (str(Path(__file__).parents[1] / "support" / "soak_server.py"),)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    qwen_folder(tmp_path / "qwen")
    (tmp_path / "said.txt").write_text(OUTPUT)
    flags: tuple[str | Path, ...] = (
        *("--engine", "scripted", "--script", tmp_path / "said.txt", "--served-model-name", NAME),
        *("--engine-option", "cache_blocks=4096", "--engine-option", "remember=4"),
        *("--trace-file", tmp_path / "trace.jsonl", "--trace-max-bytes", "300000"),
        *("--trace-keep", "10000"),
    )
    with served(tmp_path / "qwen", *flags, home=tmp_path, program=PROGRAM) as one:
        yield one


def test_streams_leak_nothing(running: Running, tmp_path: Path) -> None:
    _soak(running, 900)
    assert _traced(running, tmp_path) == 900


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_twenty_thousand_streams_leak_nothing(running: Running, tmp_path: Path) -> None:
    _soak(running, STREAMS)
    assert _traced(running, tmp_path) == STREAMS


def test_websockets_leak_nothing(running: Running) -> None:
    _sockets(running, 120)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_websockets_leak_nothing(running: Running) -> None:
    _sockets(running, 4000)


def test_memory_per_turn_of_a_session_is_constant(running: Running) -> None:
    _chat(running, 60)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_per_turn_is_constant_over_five_hundred_turns(running: Running) -> None:
    _chat(running, TURNS)


def _soak(running: Running, count: int) -> None:
    """Each stream is complete, and the second half of them leaks neither memory nor files."""
    pid, half = running.process.pid, count // 2
    asyncio.run(_stream(running, 0, half))
    before, files = resident(pid), open_files(pid)
    asyncio.run(_stream(running, half, count - half))
    assert resident(pid) < before + ROOM
    assert open_files(pid) <= files + 16
    assert "Traceback" not in running.log.read_text()


def _traced(running: Running, place: Path) -> int:
    """Stop the server and count the requests in the trace, including those dropped."""
    numbers = running.request("GET", "/metrics").body.decode()
    dropped = re.findall(r"^dovetail_trace_dropped_total (\S+)", numbers, re.MULTILINE)
    running.stop()
    files = sorted(place.glob("trace.jsonl*"))
    assert len(files) > 1
    ends = [json.loads(line) for file in files for line in _lines(file)]
    streams = [end for end in ends if end.get("stream")]
    assert len({end["id"] for end in streams}) == len(streams)
    return len(streams) + int(float(dropped[0]))


def _lines(file: Path) -> list[bytes]:
    held = file.read_bytes()
    return (gzip.decompress(held) if file.suffix == ".gz" else held).splitlines()


def _sockets(running: Running, count: int) -> None:
    """Each WebSocket has its own conversation; every third client just disconnects."""
    pid, half = running.process.pid, count // 2
    asyncio.run(_chat_many(running.url, half))
    before, files = resident(pid), open_files(pid)
    asyncio.run(_chat_many(running.url, count - half))
    assert resident(pid) < before + ROOM
    assert open_files(pid) <= files + 16
    assert "Traceback" not in running.log.read_text()


async def _chat_many(url: str, count: int, clients: int = 8) -> None:
    todo = iter(range(count))

    async def client() -> None:
        for number in todo:
            place = url.replace("http:", "ws:") + "/v1/responses"
            async with connect(place, proxy=None, max_size=None) as socket:
                first = await request_response(socket, f"Question {number}")
                assert first[-1]["type"] == "response.completed", first[-1]
                before = first[-1]["response"]["id"]
                if number % 3:
                    second = await request_response(socket, "And?", previous_response_id=before)
                    assert second[-1]["type"] == "response.completed", second[-1]
                else:
                    await send_request(socket, "And?", previous_response_id=before)
                    socket.transport.abort()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


async def _stream(running: Running, first: int, count: int) -> None:
    done = await stream_many(running.url, first, count)
    assert done.broken == []
    assert sum(done.whole.values()) + done.disconnected == count
    assert done.disconnected
    assert len(done.whole) == len(APIS)


def _chat(running: Running, turns: int) -> None:
    """Each prompt continues the previous one, and none has more new tokens than the first."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go through all parts."}]
    held, new = list[int](), list[int]()
    for turn in range(turns):
        body = {"model": NAME, "max_tokens": 200, "tools": [TOOL], "messages": messages}
        reply = running.request("POST", "/v1/messages", body, x_dovetail_debug="prefix")
        assert reply.status == 200, reply.body
        assert not turn or "x-dovetail-prefix-reason" not in reply.headers, turn
        new.append(int(reply.headers["x-dovetail-prefix-again"]))
        held.append(resident(running.process.pid))
        messages += _exchange(reply.json["content"], turn)
    assert max(new[1:]) <= 2 * min(new[1:])
    middle = turns // 2
    assert held[-1] - held[middle] < (turns - middle) * TURN_ROOM + ROOM
    assert "Traceback" not in running.log.read_text()


def _exchange(content: list[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
    result = {
        "type": "tool_result",
        "tool_use_id": content[-1]["id"],
        "content": f"part {turn}: {turn * 7919}",
    }
    return [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
