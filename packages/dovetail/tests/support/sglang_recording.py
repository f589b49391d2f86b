"""What was once asked of Dynamo's mocker, which serves SGLang's `/generate`, and what it answered.

`python sglang_recording.py URL SERVER` asks it all again and prints the lines to keep in
recordings/sglang_mocker.jsonl. A recording answers only the very requests that it was made with.
"""

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sglang.request import encode_request
from dovetail.engines.token_ids import PromptEncoder
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import Sampling

RECORDING = Path(__file__).parent / "recordings" / "sglang_mocker.jsonl"
WINDOW = 256
MODEL = "qwen3-mock"
HEALTH = "/health"


def ask(first: int, length: int, max_tokens: int, **more: Any) -> EngineRequest:
    """A request whose prompt is like no other's."""
    prompt = array("I", range(first, first + length))
    return EngineRequest(f"r{first}", prompt, max_tokens, **more)


ASKED = {
    "plain": ask(100, 8, 5),
    "longer": ask(200, 8, 24, sampling=Sampling(temperature=0.7, top_p=0.9, seed=5)),
    "probabilities": ask(300, 8, 3, sampling=Sampling(logprobs=2)),
    "stops": ask(400, 8, 5, stop_ids=frozenset(range(1000, 2000))),
    "hints": ask(500, 8, 3, session="s", priority=2, cache_salt="k"),
    "to the brim": ask(1000, WINDOW - 6, 100),
    "too long": ask(2000, WINDOW + 44, 5),
    "empty": ask(3000, 0, 5),
}


class Exchange(msgspec.Struct, frozen=True):
    """One question and its answer. What `rid` was sent says nothing."""

    path: str
    asked: msgspec.Raw
    status: int
    answer: str


class Heading(msgspec.Struct, frozen=True):
    """What was recorded."""

    server: str


def load() -> tuple[str, list[Exchange]]:
    """The server that was recorded, and all exchanges with it."""
    first, *lines = RECORDING.read_bytes().splitlines()
    exchanges = [msgspec.json.decode(line, type=Exchange) for line in lines]
    return msgspec.json.decode(first, type=Heading).server, exchanges


async def record(endpoint: Endpoint, server: str) -> list[bytes]:
    """The lines of a recording."""
    lines = [msgspec.json.encode(Heading(server))]
    for path, asked in _questions():
        method = "POST" if asked else "GET"
        status, answer = await fetch(endpoint, ClientRequest(method, path, asked))
        words = answer.decode() if path != HEALTH else ""  # addresses of somebody's machine
        told = Exchange(path, msgspec.Raw(asked or b"null"), status, words)
        lines.append(msgspec.json.encode(told))
    return lines


def _questions() -> Iterator[tuple[str, bytes]]:
    for path in ("/v1/models", HEALTH):
        yield path, b""
    for request in ASKED.values():
        yield "/generate", encode_request(request, PromptEncoder(), "recorded", None)


@asynccontextmanager
async def replaying(exchanges: Iterable[Exchange], piece: int) -> AsyncIterator[Endpoint]:
    """A server that answers as it was recorded, in pieces of so many bytes."""
    known = {(told.path, _without_rid(told.asked)): told for told in exchanges}
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
        content = await reader.readexactly(length)
        told = known.get((head.split(" ", 2)[1], _without_rid(content or b"null")))
        status, answer = (told.status, told.answer.encode()) if told else (404, b"{}")
        writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\n\r\n" % status)
        for at in range(0, len(answer), piece):
            writer.write(answer[at : at + piece])
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Endpoint(host, port)
    finally:
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None))


def _without_rid(asked: bytes | msgspec.Raw) -> bytes:
    fields = msgspec.json.decode(asked)
    if isinstance(fields, dict):
        fields.pop("rid", None)
    return msgspec.json.encode(fields, order="deterministic")


if __name__ == "__main__":
    for line in asyncio.run(record(Endpoint.parse(sys.argv[1]), sys.argv[2])):
        print(line.decode())
