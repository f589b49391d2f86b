"""A lean client in its own process: many concurrent streams, with the arrival times of their bytes.

It reads a plan as JSON and writes the measurements to a file as JSON. Times are nanoseconds of the
monotonic clock, which all processes of a machine share. Nothing is decoded while streams run.
"""

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec
import uvloop

from benchmarks.frontend.limits import raise_file_limit
from benchmarks.report import ROOT

SMALL = 4096  # bytes of a receive buffer, which the system rounds up to its minimum


class Plan(msgspec.Struct, frozen=True):
    """Run `streams` concurrent streams, each `times` in sequence, with the bodies in rotation.

    `spread`: seconds over which the streams begin. `hold`: seconds for which a stream is not read
    after its first bytes; its receive buffer is small then. `keep`: return the bytes, too.
    """

    port: int
    path: str
    bodies: tuple[str, ...]
    streams: int = 1
    times: int = 1
    spread: float = 0.0
    hold: float = 0.0
    keep: bool = False


class Seen(msgspec.Struct):
    """One stream: the time of the request, and the times, bytes and events of each read."""

    body: int
    sent: int = 0
    times: list[int] = []
    sizes: list[int] = []
    frames: list[int] = []
    raw: bytes = b""

    @property
    def first(self) -> int:
        """Nanoseconds to the first byte."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[int]:
        """Return the nanoseconds between events; 0 between events of the same read."""
        found: list[int] = []
        for at in range(1, len(self.times)):
            if self.frames[at]:
                found.append(self.times[at] - self.times[at - 1])
                found += [0] * (self.frames[at] - 1)
        return found


def run(plan: Plan, timeout: float = 300.0) -> list[Seen]:
    """Run a plan in another process. The measurements are large and returned in a file."""
    with TemporaryDirectory(prefix="dovetail-client-") as folder:
        seen = Path(folder) / "seen.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.frontend.client", str(seen)],
            input=msgspec.json.encode(plan),
            cwd=ROOT,
            timeout=timeout,
            check=True,
        )
        return msgspec.json.decode(seen.read_bytes(), type=list[Seen])


class Stream(asyncio.Protocol):
    """One request on a new connection, read until the server closes it."""

    def __init__(self, request: bytes, seen: Seen, plan: Plan) -> None:
        self._request = request
        self._seen = seen
        self._plan = plan
        self._parts: list[bytes] = []
        self._half = False  # whether the last byte may be the first half of an event's end
        self._transport: asyncio.Transport | None = None
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their class.
        self._transport = cast(asyncio.Transport, transport)
        self._seen.sent = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        seen = self._seen
        seen.times.append(time.monotonic_ns())
        seen.sizes.append(len(data))
        seen.frames.append(data.count(b"\n\n") + (self._half and data.startswith(b"\n")))
        self._half = data.endswith(b"\n") and not data.endswith(b"\n\n")
        if self._plan.keep:
            self._parts.append(data)
        if self._plan.hold and len(seen.times) == 1:
            assert self._transport is not None
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._plan.hold, self._transport.resume_reading)

    def connection_lost(self, error: Exception | None) -> None:
        self._seen.raw = b"".join(self._parts)
        if not self.over.done():
            self.over.set_result(None)


async def carry_out(plan: Plan) -> list[Seen]:
    """Run all streams of a plan."""
    streams = (_in_a_row(plan, number) for number in range(plan.streams))
    return [seen for row in await asyncio.gather(*streams) for seen in row]


async def _in_a_row(plan: Plan, number: int) -> list[Seen]:
    await asyncio.sleep(plan.spread * number / plan.streams)
    which = number % len(plan.bodies)
    return [await _one(plan, which) for _ in range(plan.times)]


async def _one(plan: Plan, which: int) -> Seen:
    body = plan.bodies[which].encode()
    head = f"POST {plan.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    seen = Seen(which)
    loop = asyncio.get_running_loop()
    place = socket.socket()
    place.setblocking(False)
    if plan.hold:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    await loop.sock_connect(place, ("127.0.0.1", plan.port))
    _, stream = await loop.create_connection(
        lambda: Stream(head.encode() + body, seen, plan), sock=place
    )
    await stream.over
    return seen


def dechunked(raw: bytes) -> bytes:
    """Decode a chunked body. The available bytes of a truncated chunk are included."""
    body, parts = raw.partition(b"\r\n\r\n")[2], []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)


def status(raw: bytes) -> int:
    """Return the status of a response; 0 if there is none."""
    words = raw[:20].split()
    return int(words[1]) if len(words) > 1 else 0


def main() -> None:
    raise_file_limit()
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(uvloop.run(carry_out(plan))))


if __name__ == "__main__":
    main()
