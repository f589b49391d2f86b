"""An engine whose responses are corrupted on their way to the server."""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from server_process import Running, served
from tools.attacks.live.servers import (
    GENERATION_BODIES,
    is_complete,
    model_folder,
    post,
    scripted_engine,
)
from tools.attacks.scenario import Effort, Outcome, judge

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
CHOICE = b'data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":%b}]}\n\n'
#: Complete responses that an engine should never send.
RESPONSES: tuple[bytes, ...] = (
    b"",
    b"\r\n\r\n",
    b"garbage",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 500 Oops\r\ncontent-type: text/html\r\n\r\n<html>\xff</html>",
    b"HTTP/1.1 999 Odd\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nnot gzip",
    EVENTS,
    EVENTS + b"data: [DONE]\n\n",
    EVENTS + b"data: null\n\ndata: [DONE]\n\n",
    EVENTS + b"data: []\n\n",
    EVENTS + b'data: {"choices":[]}\n\ndata: [DONE]\n\n',
    EVENTS + b'data: {"choices":null}\n\n',
    EVENTS + b"data: " + b"[" * 5000 + b"\n\n",
    EVENTS + b"data: \xff\xfe\n\n",
    EVENTS + b'data: {"error":{"message":"no"}}\n\n',
    *(
        EVENTS + CHOICE % ids
        for ids in (b"[-1]", b"[4294967296]", b"[1e400]", b'["a"]', b"[null]", b"{}", b"[999999]")
    ),
    EVENTS + CHOICE % b"[9707]" + b"data: " + b"x" * 70_000_000,
    JSON + b"null",
    JSON + b'{"choices":[{}]}',
)


#: A response that loses its end is noticed only by this timeout, since connections are kept.
SILENCE = ("--engine-option", "silence=5")


class CorruptingProxy:
    """Forward connections to an engine, and corrupt the responses to POST requests.

    It runs in a thread with a loop of its own, since the server starts while it is running.
    """

    def __init__(self, url: str, dice: random.Random) -> None:
        self._target = urlsplit(url)
        self._dice = dice
        self._loop = asyncio.new_event_loop()
        self.active = False
        self.corrupted: Counter[str] = Counter()
        self.port = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        )
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(1 << 16)
            corrupt = self.active and first.startswith(b"POST ")
            if corrupt and self._dice.random() < 0.5:
                self.corrupted["replaced"] += 1
                writer.write(self._dice.choice(RESPONSES))
                await writer.drain()
                return
            await self._forward(first, reader, writer, corrupt)
        except OSError:
            pass
        finally:
            writer.close()

    async def _forward(
        self,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        corrupt: bool,
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(
            self._target.hostname, self._target.port
        )
        up_writer.write(first)
        upload = asyncio.create_task(_copy(reader, up_writer))
        kind = self._dice.choice(("flip", "cut", "repeat", "drop")) if corrupt else ""
        self.corrupted.update([kind] if kind else [])
        try:
            while data := await up_reader.read(1 << 16):
                writer.write(self._corrupt(kind, data))
                await writer.drain()
                if kind == "cut":
                    return
        finally:
            upload.cancel()
            up_writer.close()

    def _corrupt(self, kind: str, data: bytes) -> bytes:
        at = self._dice.randrange(len(data))
        match kind:
            case "flip":
                changed = bytearray(data)
                for _ in range(3):
                    changed[self._dice.randrange(len(data))] = self._dice.randrange(256)
                return bytes(changed)
            case "cut":
                return data[:at]
            case "repeat":
                return data[:at] + data[at // 2 :]
            case "drop":
                return data[:at] + data[at + self._dice.randrange(1, 40) :]
        return data


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


def corrupted_responses(effort: Effort) -> Outcome:
    """Every client gets a complete response or an error of its API, and the server recovers."""
    dice, count = random.Random(effort.seed), effort.scale(400, 80)
    with (
        model_folder() as model,
        scripted_engine(model, "One two three four five six seven.") as url,
    ):
        proxy = CorruptingProxy(url, dice)
        options = ("--tokenizer", model, "--recovery-wait", "0")
        with (
            proxy.running() as address,
            served("--engine", "vllm", "--engine-url", address, *SILENCE, *options) as running,
        ):
            proxy.active = True
            statuses, wrong = asyncio.run(_attack(running, dice, count))
            proxy.active = False
            recovered = asyncio.run(_recovers(running))
            log = running.log.read_text()
    tracebacks = log.count("Traceback")
    return judge(
        {"wrong": 0, "tracebacks": 0, "unrecovered": 0, "uncorrupted": count * 3 // 4},
        "\n".join(map(str, wrong[:5])) + log[-3000:] * bool(tracebacks),
        requests=count,
        uncorrupted=count - proxy.corrupted.total(),
        statuses=dict(statuses),
        wrong=len(wrong),
        tracebacks=tracebacks,
        unrecovered=int(not recovered),
    )


async def _attack(
    running: Running, dice: random.Random, count: int
) -> tuple[Counter[int], list[object]]:
    statuses: Counter[int] = Counter()
    wrong: list[object] = []
    for _ in range(count // 4):
        paths = [dice.choice(list(GENERATION_BODIES)) for _ in range(4)]
        bodies = [{**GENERATION_BODIES[path], "stream": dice.random() < 0.6} for path in paths]
        replies = await asyncio.gather(*map(post, [running] * 4, paths, bodies))
        for path, reply in zip(paths, replies, strict=True):
            statuses[reply.status] += 1
            internal = reply.status == 500 and b"vLLM" not in reply.body
            if internal or not is_complete(path, reply):
                wrong.append((path, reply.status, reply.body[-600:]))
    return statuses, wrong


async def _recovers(running: Running) -> bool:
    """Return whether an ordinary request succeeds within 20 s of the engine's return."""
    path = "/v1/chat/completions"
    for _ in range(40):
        reply = await post(running, path, GENERATION_BODIES[path])
        if reply.status == 200 and "seven" in json.dumps(reply.json):
            return True
        await asyncio.sleep(0.5)
    return False
