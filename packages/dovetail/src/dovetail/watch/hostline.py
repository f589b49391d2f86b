"""The `Host` lines of a client's requests, made to name a TLS server. All else stays as it is.

Servers behind TLS are chosen by name, so a request that names this machine would not be answered.
To find the heads on a connection that is kept, the lengths of bodies have to be followed. Where
they cannot be, the rest of the connection is passed on as it is.
"""

import re
from typing import Literal

MAX_HEAD_BYTES = 256 << 10  # bytes

_HOST = re.compile(rb"(?im)^(host:[ \t]*)[^\r\n]*")
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d+)[ \t]*\r?$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding:[^\r\n]*\bchunked[ \t]*\r?$")
_UPGRADE = re.compile(rb"(?im)^upgrade:")
_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})")

RewriteState = Literal["head", "body", "size", "chunk", "trailer", "rest"]


class HostRewriter:
    """One direction of one connection."""

    __slots__ = ("_buffer", "_host", "_remaining", "_state")

    def __init__(self, host: str) -> None:
        self._host = host.encode("latin-1")
        self._state: RewriteState = "head"
        self._buffer = b""  # of a head or a line that is not complete yet
        self._remaining = 0  # bytes of a body or a chunk that are to come

    def rewrite(self, data: bytes) -> bytes:
        """The bytes to send for these. Those of an unfinished head or line wait for its end."""
        out: list[bytes] = []
        data, self._buffer = self._buffer + data, b""
        while data:
            if self._state == "rest":
                out.append(data)
                break
            if self._state in ("body", "chunk"):
                taken = data[: self._remaining]
                self._remaining -= len(taken)
                out.append(taken)
                data = data[len(taken) :]
                if not self._remaining:
                    self._state = "head" if self._state == "body" else "size"
                continue
            data = self._take_line(data, out)
        return b"".join(out)

    def _take_line(self, data: bytes, out: list[bytes]) -> bytes:
        """Takes a head, or a line between chunks, if it is there. What is left."""
        end = b"\r\n\r\n" if self._state == "head" else b"\r\n"
        place = data.find(end)
        if place < 0:
            if len(data) > MAX_HEAD_BYTES:
                self._state = "rest"
                return data
            self._buffer = data
            return b""
        place += len(end)
        found, rest = data[:place], data[place:]
        if self._state == "head":
            out.append(self._rewrite_head(found))
        else:
            out.append(found)
            self._read_chunk_line(found)
        return rest

    def _rewrite_head(self, head: bytes) -> bytes:
        length = _LENGTH.search(head)
        if _UPGRADE.search(head):
            self._state = "rest"
        elif _CHUNKED.search(head):
            self._state = "size"
        elif length is not None and int(length[1]):
            self._state, self._remaining = "body", int(length[1])
        return _HOST.sub(lambda line: line[1] + self._host, head, count=1)

    def _read_chunk_line(self, line: bytes) -> None:
        """A chunk's size, the end of a chunk, or a line of a trailer."""
        if self._state == "trailer":
            if line == b"\r\n":
                self._state = "head"
            return
        if line == b"\r\n":  # behind a chunk's data
            return
        size = _SIZE.match(line)
        if size is None:
            self._state = "rest"
        elif int(size[1], 16):
            self._state, self._remaining = "chunk", int(size[1], 16)
        else:
            self._state = "trailer"
