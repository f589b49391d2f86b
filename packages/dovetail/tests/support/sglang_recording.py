"""Recorded exchanges with Dynamo's mocker, which serves SGLang's `/generate`.

`python sglang_recording.py URL SERVER` sends all requests again and prints the lines of
recordings/sglang_mocker.jsonl. A recording responds only to requests that it contains.
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


def make_request(first: int, length: int, max_tokens: int, **more: Any) -> EngineRequest:
    """Create a request with a unique prompt."""
    prompt = array("I", range(first, first + length))
    return EngineRequest(f"r{first}", prompt, max_tokens, **more)


REQUESTS = {
    "plain": make_request(100, 8, 5),
    "longer": make_request(200, 8, 24, sampling=Sampling(temperature=0.7, top_p=0.9, seed=5)),
    "probabilities": make_request(300, 8, 3, sampling=Sampling(logprobs=2)),
    "stops": make_request(400, 8, 5, stop_ids=frozenset(range(1000, 2000))),
    "hints": make_request(500, 8, 3, session="s", priority=2, cache_salt="k"),
    "to the brim": make_request(1000, WINDOW - 6, 100),
    "too long": make_request(2000, WINDOW + 44, 5),
    "empty": make_request(3000, 0, 5),
}


class RecordedExchange(msgspec.Struct, frozen=True):
    """One request and its response, regardless of `rid`. The field names are the file format."""

    path: str
    request: msgspec.Raw = msgspec.field(name="asked")
    status: int
    response: str = msgspec.field(name="answer")


class Heading(msgspec.Struct, frozen=True):
    """The first line: which server was recorded."""

    server: str


def load() -> tuple[str, list[RecordedExchange]]:
    """Return the name of the recorded server, and all exchanges with it."""
    first, *lines = RECORDING.read_bytes().splitlines()
    exchanges = [msgspec.json.decode(line, type=RecordedExchange) for line in lines]
    return msgspec.json.decode(first, type=Heading).server, exchanges


async def record(endpoint: Endpoint, server: str) -> list[bytes]:
    """Return the lines of a recording."""
    lines = [msgspec.json.encode(Heading(server))]
    for path, body in _requests():
        method = "POST" if body else "GET"
        status, content = await fetch(endpoint, ClientRequest(method, path, body))
        # the health response contains addresses of the machine
        text = content.decode() if path != HEALTH else ""
        exchange = RecordedExchange(path, msgspec.Raw(body or b"null"), status, text)
        lines.append(msgspec.json.encode(exchange))
    return lines


def _requests() -> Iterator[tuple[str, bytes]]:
    for path in ("/v1/models", HEALTH):
        yield path, b""
    for request in REQUESTS.values():
        yield "/generate", encode_request(request, PromptEncoder(), "recorded", None)


@asynccontextmanager
async def replaying(exchanges: Iterable[RecordedExchange], piece: int) -> AsyncIterator[Endpoint]:
    """Run a server that responds as recorded, in pieces of `piece` bytes."""
    known = {(one.path, _without_rid(one.request)): one for one in exchanges}
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
        body = await reader.readexactly(length)
        exchange = known.get((head.split(" ", 2)[1], _without_rid(body or b"null")))
        status, content = (
            (exchange.status, exchange.response.encode()) if exchange else (404, b"{}")
        )
        writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\n\r\n" % status)
        for at in range(0, len(content), piece):
            writer.write(content[at : at + piece])
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Endpoint(host, port)
    finally:
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None))


def _without_rid(request: bytes | msgspec.Raw) -> bytes:
    fields = msgspec.json.decode(request)
    if isinstance(fields, dict):
        fields.pop("rid", None)
    return msgspec.json.encode(fields, order="deterministic")


if __name__ == "__main__":
    for line in asyncio.run(record(Endpoint.parse(sys.argv[1]), sys.argv[2])):
        print(line.decode())
