"""Many paced streams, clients that leave, and clients that do not read."""

import asyncio
import json
import random
import re
import socket
import time
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import urlsplit

from abuse_clients import AttackResults, open_files, resident, run_attacks
from abuse_requests import attacks
from http_fixture import Reply
from server_process import NAME, Running
from tools.attacks.live.servers import (
    GENERATION_BODIES,
    SMALL_CACHES,
    STREAM_ENDS,
    connect,
    is_complete,
    post,
    raw_request,
    serving,
)
from tools.attacks.scenario import Effort, Outcome, judge

WORDS = 120
RATE = 40.0
MALFORMED_CLIENTS = 32  # a mutated request may be valid, and then takes as long as a stream
MAX_MALFORMED = 100_000
MAX_LATE_GROWTH_MB = 16  # allocators may take a little from one round to the next
MAX_READER_KB = 4096  # per client: as much as the buffers of the kernel for its connection
READER_BUFFER_BYTES = 4096
STALL_SECONDS = 4.0
TRIM_SECONDS = 4.0
TOO_LONG = "x " * 5_000_000
MAX_GROWTH_SECONDS = 30.0
CHAT = "/v1/chat/completions"
UNREAD_BODY = {"stream": True, **GENERATION_BODIES[CHAT]}
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
    """Streams arrive complete and in order, while clients leave and malformed requests arrive.

    The first half of them fills the caches: only the memory of the second half counts.
    """
    dice, count = random.Random(effort.seed), effort.scale(150, 30)
    text = " ".join(f"w{number}" for number in range(WORDS))
    streams: list[PacedStream] = []
    sent = AttackResults()
    memory: list[int] = []
    files: list[int] = []
    with serving(text, rate=RATE) as running:
        for half in range(2):
            more, results = asyncio.run(_stream_all(running, dice, count, effort.seed + half))
            streams += more
            sent.statuses += results.statuses
            sent.wrong += results.wrong
            time.sleep(1.0)
            memory.append(resident(running.process.pid))
            files.append(open_files(running.process.pid))
    stayed = [one for one in streams if not one.left]
    broken = [one for one in streams if one.numbers != list(range(len(one.numbers)))]
    short = [one for one in stayed if len(one.numbers) != WORDS or not one.ended]
    no = ("out_of_order", "incomplete", "wrong_responses")
    return judge(
        {**dict.fromkeys(no, 0), "second_half_mb": MAX_LATE_GROWTH_MB, "second_half_files": 8},
        f"out of order: {broken[:2]}\nincomplete: {short[:2]}\nwrong responses: {sent.wrong[:2]}",
        streams=len(streams),
        left=len(streams) - len(stayed),
        malformed=sent.statuses.total(),
        out_of_order=len(broken),
        incomplete=len(short),
        wrong_responses=len(sent.wrong),
        second_half_mb=round((memory[1] - memory[0]) / 1e6),
        second_half_files=files[1] - files[0],
    )


async def _stream_all(
    running: Running, dice: random.Random, count: int, seed: int
) -> tuple[list[PacedStream], AttackResults]:
    """Run the streams, and send malformed requests until they have ended."""
    paths = [dice.choice(list(GENERATION_BODIES)) for _ in range(count)]
    lengths = [dice.randrange(WORDS) if dice.random() < 0.2 else None for _ in range(count)]
    streams = asyncio.gather(*map(_stream, [running] * count, paths, lengths))
    malformed = takewhile(lambda _: not streams.done(), attacks(seed, MAX_MALFORMED, NAME))
    results = await run_attacks(running.url, malformed, MALFORMED_CLIENTS)
    return await streams, results


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
    """Clients that do not read long responses: the server's memory does not grow with them.

    The server keeps the output that it wrote, which is as much as the buffers of the kernel hold,
    and the turns in caches, which are small here. What the allocator keeps after two rounds is
    enough for further ones: the third one takes nothing more.
    """
    count = effort.scale(40, 20)
    with serving(LONG_TEXT, max_model_len=1_000_000, program=SMALL_CACHES) as running:
        asyncio.run(post(running, CHAT, {**UNREAD_BODY, "max_tokens": 1000}))
        # After such a body the server returns unused memory, which would hide its growth.
        asyncio.run(post(running, CHAT, {"messages": [{"role": "user", "content": TOO_LONG}]}))
        time.sleep(TRIM_SECONDS)
        before = resident(running.process.pid)
        rounds = [asyncio.run(_stall(running, count)) for _ in range(3)]
    failed = [one.other for one in rounds if not is_complete(CHAT, one.other)]
    return judge(
        {"reader_kb": MAX_READER_KB, "third_round_mb": MAX_LATE_GROWTH_MB, "failed": 0},
        "\n".join(f"another client received {one.status}: {one.body[-200:]!r}" for one in failed),
        readers=len(rounds) * count,
        reader_kb=round((rounds[0].peak - before) / count / 1e3),
        after_first_round_mb=round((rounds[0].after - before) / 1e6),
        after_second_round_mb=round((rounds[1].after - before) / 1e6),
        third_round_mb=round((rounds[2].after - max(one.after for one in rounds[:2])) / 1e6),
        failed=len(failed),
    )


@dataclass(frozen=True)
class StalledRound:
    """Clients that did not read.

    peak: The largest memory of the server while they were connected.
    after: The memory some seconds after they have left.
    other: The response to a client that did read.
    """

    peak: int
    after: int
    other: Reply


async def _stall(running: Running, count: int) -> StalledRound:
    """Open streams without reading them until the server's memory does not change anymore."""
    sent = raw_request(CHAT, json.dumps({"model": NAME, **UNREAD_BODY}).encode())
    address = urlsplit(running.url)
    sockets = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READER_BUFFER_BYTES)
        one.connect((address.hostname, address.port))
        one.sendall(sent)
        sockets.append(one)
    await asyncio.sleep(STALL_SECONDS)
    peak = await _stable_memory(running.process.pid)
    other = await post(running, CHAT, {**UNREAD_BODY, "max_tokens": 100})
    for one in sockets:
        one.close()
    await asyncio.sleep(TRIM_SECONDS)
    return StalledRound(peak, await _stable_memory(running.process.pid), other)


async def _stable_memory(pid: int) -> int:
    """Wait until the memory of a process stays the same for two seconds, and return it."""
    until = time.monotonic() + MAX_GROWTH_SECONDS
    sizes = [resident(pid)]
    while time.monotonic() < until:
        await asyncio.sleep(1.0)
        sizes.append(resident(pid))
        if len(sizes) > 2 and max(sizes[-3:]) - min(sizes[-3:]) < 1 << 20:
            break
    return sizes[-1]
