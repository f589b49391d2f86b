"""Many paced streams, clients that leave, and clients that do not read."""

import asyncio
import json
import random
import re
import socket
import time
from dataclasses import dataclass

from abuse_clients import open_files, resident, run_attacks
from abuse_requests import attacks
from http_fixture import Reply
from server_process import NAME, Running
from tools.attacks.live.servers import (
    GENERATION_BODIES,
    STREAM_ENDS,
    connect,
    post,
    raw_request,
    serving,
)
from tools.attacks.scenario import Effort, Outcome, judge

WORDS = 120
RATE = 40.0
MAX_MEMORY_GROWTH_BYTES = 48 << 20
READER_BUFFER_BYTES = 4096
LONG_TEXT = " infrastructure" * 300_000
_NUMBER = re.compile(r"w(\d+)")


@dataclass(frozen=True)
class PacedStream:
    """What one client received.

    numbers: The numbers of the words of the output, in the order of their arrival.
    """

    numbers: list[int]
    ended: bool
    left: bool


def paced_streams(effort: Effort) -> Outcome:
    """Streams arrive complete and in order, while clients leave and malformed requests arrive."""
    dice, count = random.Random(effort.seed), effort.scale(300, 60)
    text = " ".join(f"w{number}" for number in range(WORDS))
    with serving(text, rate=RATE) as running:
        asyncio.run(_stream_all(running, dice, 20, 0))
        before, files = resident(running.process.pid), open_files(running.process.pid)
        streams, statuses = asyncio.run(
            _stream_all(running, dice, count, effort.scale(2000, 400), effort.seed)
        )
        time.sleep(1.0)
        growth = resident(running.process.pid) - before
        files = open_files(running.process.pid) - files
    stayed = [one for one in streams if not one.left]
    broken = [one for one in streams if one.numbers != list(range(len(one.numbers)))]
    short = [one for one in stayed if len(one.numbers) != WORDS or not one.ended]
    return judge(
        not broken and not short and statuses == [] and growth < MAX_MEMORY_GROWTH_BYTES,
        f"out of order: {broken[:2]}\nincomplete: {short[:2]}\nwrong responses: {statuses[:2]}",
        streams=count,
        left=count - len(stayed),
        out_of_order=len(broken),
        incomplete=len(short),
        wrong_responses=len(statuses),
        memory_growth_mb=round(growth / 1e6),
        files_growth=files,
    )


async def _stream_all(
    running: Running, dice: random.Random, count: int, malformed: int, seed: int = 0
) -> tuple[list[PacedStream], list[object]]:
    """Run the streams, and malformed requests at the same time; return those that went wrong."""
    paths = [dice.choice(list(GENERATION_BODIES)) for _ in range(count)]
    lengths = [dice.randrange(WORDS) if dice.random() < 0.2 else None for _ in range(count)]
    attack = asyncio.create_task(run_attacks(running.url, attacks(seed, malformed, NAME), 4))
    streams = await asyncio.gather(*map(_stream, [running] * count, paths, lengths))
    return streams, list((await attack).wrong)


async def _stream(running: Running, path: str, leave_after: int | None) -> PacedStream:
    reader, writer = await connect(running)
    body = {"model": NAME, "stream": True, **GENERATION_BODIES[path]}
    writer.write(raw_request(path, json.dumps(body).encode()))
    received = b""
    try:
        while data := await reader.read(1 << 16):
            received += data
            if leave_after is not None and len(_deltas(received)) >= leave_after:
                break
    finally:
        writer.transport.abort()
    left = leave_after is not None
    # The last number of a client that left may be incomplete.
    numbers = _deltas(received)[:-1] if left else _deltas(received)
    return PacedStream(numbers, STREAM_ENDS[path][0] in received, left)


def _deltas(received: bytes) -> list[int]:
    """Return the numbers in the deltas; later events repeat the complete text."""
    texts: list[str] = []
    for line in received.split(b"\n"):
        if line.startswith(b"data: {") and line.endswith(b"}"):
            texts += _delta(json.loads(line[6:]))
    return [int(number) for number in _NUMBER.findall("".join(texts))]


def _delta(event: dict[str, object]) -> list[str]:
    match event:
        case {"choices": [{"delta": {"content": str(text)}}]}:
            return [text]
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return [text]
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return [text]
    return []


def slow_readers(effort: Effort) -> Outcome:
    """Clients that do not read long responses: the server's memory does not grow with them."""
    count = effort.scale(40, 15)
    path = "/v1/chat/completions"
    body = {"stream": True, **GENERATION_BODIES[path]}
    with serving(LONG_TEXT, max_model_len=1_000_000) as running:
        whole = asyncio.run(post(running, path, body))
        before = resident(running.process.pid)
        growth, other = asyncio.run(_stall(running, path, body, count))
        time.sleep(2.0)
        after = resident(running.process.pid) - before
    return judge(
        growth < MAX_MEMORY_GROWTH_BYTES
        and other.status == 200
        and STREAM_ENDS[path][0] in other.body,
        f"another client received {other.status} with {len(other.body)} bytes",
        readers=count,
        generated_mb=round(count * len(whole.body) / 1e6),
        memory_growth_mb=round(growth / 1e6),
        memory_growth_after_mb=round(after / 1e6),
    )


async def _stall(
    running: Running, path: str, body: dict[str, object], count: int
) -> tuple[int, Reply]:
    """Open streams without reading them; return the growth and the response of another client."""
    before = resident(running.process.pid)
    sent = raw_request(path, json.dumps({"model": NAME, **body}).encode())
    host, port = running.url.removeprefix("http://").split(":")
    sockets = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READER_BUFFER_BYTES)
        one.connect((host, int(port)))
        one.sendall(sent)
        sockets.append(one)
    growth = 0
    for _ in range(10):
        await asyncio.sleep(0.8)
        growth = max(growth, resident(running.process.pid) - before)
    other = await post(running, path, body)
    for one in sockets:
        one.close()
    return growth, other
