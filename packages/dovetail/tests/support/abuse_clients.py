"""A crowd of clients on raw connections, and what a server process takes of the machine."""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from abuse_requests import Attack
from http_fixture import Reply, read_reply

PATIENCE = 60.0  # seconds for one answer: more than any of these can honestly take


@dataclass
class Told:
    """What came back: how often each status, and what must never come."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[tuple[Attack, Reply]] = field(default_factory=list)

    def note(self, attack: Attack, reply: Reply) -> None:
        self.statuses[reply.status] += 1
        if reply.status >= 500 or not _is_told_well(attack, reply):
            self.wrong.append((attack, reply))


def _is_told_well(attack: Attack, reply: Reply) -> bool:
    """An error says what is wrong, in JSON; only what is no HTTP gets an empty one."""
    if reply.status < 400 or attack.method == "HEAD" or not reply.body:
        return True
    error = reply.json["error"]
    return bool(error["type"] and error["message"])


async def throw(url: str, attacks: Iterable[Attack], clients: int = 8) -> Told:
    """Sends all of them, several at a time, each client over one connection while it lasts."""
    told, todo = Told(), iter(attacks)
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(url, todo, told))
    return told


async def _client(url: str, todo: Iterator[Attack], told: Told) -> None:
    place = urlsplit(url)
    line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for attack in todo:
        if line is None:
            line = await asyncio.open_connection(place.hostname, place.port, limit=1 << 22)
        reader, writer = line
        writer.write(attack.sent)
        if attack.cut:
            await writer.drain()
            writer.transport.abort()
            line = None
            continue
        async with asyncio.timeout(PATIENCE):
            reply = await read_reply(reader, attack.method)
        told.note(attack, reply)
        if reply.headers.get("connection") == "close":
            writer.transport.abort()
            line = None
    if line is not None:
        line[1].transport.abort()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds, less what it shares with its files."""
    for entry in Path(f"/proc/{pid}/status").read_text().splitlines():
        if entry.startswith("RssAnon:"):
            return int(entry.split()[1]) << 10
    raise LookupError(f"no memory is told of {pid}")


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def ask(url: str, path: str) -> tuple[int, bytes]:
    """One plain request, over a connection of its own."""
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        with connection.getresponse() as response:
            return response.status, response.read()
    finally:
        connection.close()
        gc.collect()
