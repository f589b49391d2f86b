"""Arrival times of the events of a stream at the client."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from benchmarks.frontend.client import Seen

DISPATCH = "tool_call_dispatch"


@dataclass(frozen=True)
class Arrival:
    """An event with the nanosecond of its last byte. `data` is empty if it is not JSON."""

    at: int
    name: str
    data: dict[str, Any]


def arrivals(seen: Seen) -> list[Arrival]:
    """Return the events of a recorded response, in order."""
    ends = list(accumulate(seen.sizes))
    found: list[Arrival] = []
    rest = b""
    for data, end in _chunks(seen.raw):
        *frames, rest = (rest + data).split(b"\n\n")
        at = seen.times[bisect_left(ends, end)]
        found += [_read(frame, at) for frame in frames]
    return found


def _chunks(raw: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the chunks of an HTTP response, each with the offset of its end."""
    if not raw.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"not an HTTP response: {raw[:300]!r}")
    at = raw.index(b"\r\n\r\n") + 4
    while at < len(raw):
        start = raw.index(b"\r\n", at) + 2
        end = start + int(raw[at : start - 2], 16)
        if end == start:
            return
        yield raw[start:end], end
        at = end + 2


def _read(frame: bytes, at: int) -> Arrival:
    name, data = "", b""
    for line in frame.split(b"\n"):
        key, _, value = line.partition(b": ")
        if key == b"event":
            name = value.decode()
        elif key == b"data":
            data = value
    known = msgspec.json.decode(data) if data.startswith(b"{") else {}
    return Arrival(at, name or known.get("type", ""), known)
