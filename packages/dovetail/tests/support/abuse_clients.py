"""Many clients on raw connections, and the resources that a server process uses."""

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

TIMEOUT_SECONDS = 60.0  # per response


@dataclass
class AttackResults:
    """Counts of each status, and the responses that must never occur."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[tuple[Attack, Reply]] = field(default_factory=list)

    def note(self, attack: Attack, reply: Reply) -> None:
        self.statuses[reply.status] += 1
        if reply.status >= 500 or not _is_valid_error(attack, reply):
            self.wrong.append((attack, reply))


def _is_valid_error(attack: Attack, reply: Reply) -> bool:
    """Whether an error is described in JSON; only bytes that are not HTTP get an empty body."""
    if reply.status < 400 or attack.method == "HEAD" or not reply.body:
        return True
    error = reply.json["error"]
    return bool(error["type"] and error["message"])


async def run_attacks(url: str, attacks: Iterable[Attack], clients: int = 8) -> AttackResults:
    """Send all attacks, several at a time, each client over one connection while it lasts."""
    results, todo = AttackResults(), iter(attacks)
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(url, todo, results))
    return results


async def _client(url: str, todo: Iterator[Attack], results: AttackResults) -> None:
    address = urlsplit(url)
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for attack in todo:
        if connection is None:
            connection = await asyncio.open_connection(
                address.hostname, address.port, limit=1 << 22
            )
        reader, writer = connection
        writer.write(attack.sent)
        if attack.aborts:
            await writer.drain()
            writer.transport.abort()
            connection = None
            continue
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reply = await read_reply(reader, attack.method)
        results.note(attack, reply)
        if reply.headers.get("connection") == "close":
            writer.transport.abort()
            connection = None
    if connection is not None:
        connection[1].transport.abort()


def resident(pid: int) -> int:
    """Bytes of memory that a process uses, without those shared with its files."""
    for entry in Path(f"/proc/{pid}/status").read_text().splitlines():
        if entry.startswith("RssAnon:"):
            return int(entry.split()[1]) << 10
    raise LookupError(f"no memory is told of {pid}")


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def get(url: str, path: str) -> tuple[int, bytes]:
    """Send one plain request over a separate connection."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        with connection.getresponse() as response:
            return response.status, response.read()
    finally:
        connection.close()
        gc.collect()
