"""Short streams over all three APIs, each in a separate session.

Every eleventh client disconnects at the first byte of its response.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from http_fixture import read_reply
from server_process import NAME

TIMEOUT_SECONDS = 60.0  # seconds for one stream
_TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}


@dataclass(frozen=True)
class Api:
    """One API, and the end of its streams."""

    path: str
    end: bytes

    def body(self, number: int) -> dict[str, Any]:
        question = f"Question {number}: what is {number} and {number * 7}?"
        if self.path == "/v1/responses":
            return {"input": question, "tools": [_function()]}
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 100}
        if self.path == "/v1/messages":
            return {**body, "tools": [{"name": "run", "input_schema": _TOOL}]}
        return {**body, "tools": [{"type": "function", "function": _function()}]}


APIS = (
    Api("/v1/messages", b"event: message_stop\n"),
    Api("/v1/responses", b"event: response.completed\n"),
    Api("/v1/chat/completions", b"data: [DONE]\n\n"),
)


@dataclass
class Done:
    """Finished streams, by how they ended."""

    whole: Counter[str] = field(default_factory=Counter)
    disconnected: int = 0
    broken: list[tuple[str, int, bytes]] = field(default_factory=list)


async def stream_many(url: str, first: int, count: int, clients: int = 16) -> Done:
    """Run so many streams, several at a time; every seventh connection is a new one."""
    done, todo = Done(), iter(range(first, first + count))
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(url, todo, done))
    return done


async def _client(url: str, todo: Any, done: Done) -> None:
    address = urlsplit(url)
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number in todo:
        if connection is None:
            connection = await asyncio.open_connection(address.hostname, address.port)
        reader, writer = connection
        api = APIS[number % len(APIS)]
        writer.write(_request(api, number))
        if number % 11 == 0:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await reader.readexactly(1)
            writer.transport.abort()
            connection = None
            done.disconnected += 1
            continue
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reply = await read_reply(reader)
        if reply.status == 200 and api.end in reply.body[-4000:]:
            done.whole[api.path] += 1
        else:
            done.broken.append((api.path, reply.status, reply.body[-400:]))
        if number % 7 == 0:
            writer.close()
            connection = None
    if connection is not None:
        connection[1].close()


def _request(api: Api, number: int) -> bytes:
    body = json.dumps({**api.body(number), "model": NAME, "stream": True}).encode()
    head = f"POST {api.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return f"{head}x-claude-code-session-id: session-{number}\r\n\r\n".encode() + body


def _function() -> dict[str, Any]:
    return {"type": "function", "name": "run", "parameters": _TOOL}
