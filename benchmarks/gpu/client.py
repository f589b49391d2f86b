"""Send one request at a time over a new connection, and measure the time to first token."""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.frontend.client import dechunked, status

#: The first event with content of the response; message_start is in the same bytes.
FIRST = b"event: content_block_delta"
PIECE = 1 << 16
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Reply:
    """A response: when it was requested, the time to its first token, the JSON of its events."""

    begun: float
    first_ms: float
    frames: list[dict[str, Any]]

    @property
    def usage(self) -> dict[str, int]:
        """The last value of each count."""
        counts: dict[str, int] = {}
        for frame in self.frames:
            usage = frame.get("usage") or frame.get("message", {}).get("usage") or {}
            counts |= {name: value for name, value in usage.items() if isinstance(value, int)}
        return counts


def send_request(port: int, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """Send a request and read its response. The clock starts before the first byte is written."""
    head = {"host": f"127.0.0.1:{port}", **headers, "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    sent = f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.perf_counter()
        line.sendall(sent)
        raw, first = b"", None
        while piece := line.recv(PIECE):
            raw += piece
            if first is None and FIRST in raw:
                first = time.perf_counter() - begun
    if status(raw) != 200 or first is None:
        raise RuntimeError(f"the response is not a stream: {raw[:2000]!r}")
    return Reply(begun, first * 1000, list(payloads(dechunked(raw))))


def payloads(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each frame."""
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
