"""Check and rewrite the heads of requests on their way through the relay.

The relay has no keys of its own, so any web page could use the server behind it. The head of each
request is held back until it is complete and its `Host` and `Origin` are allowed. Bodies and
everything after an upgrade are passed through.
"""

import re
from collections.abc import Mapping
from typing import Literal

from dovetail.access.browser import BrowserPolicy
from dovetail_model import Forbidden

MAX_HEAD_BYTES = 256 << 10

_REQUEST_LINE = re.compile(rb"\S+ +[a-z][a-z0-9+.-]*://([^/?# ]*)", re.IGNORECASE)
_HEADER = re.compile(rb"(?m)^([^\s:]+)[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$")
_HOST = re.compile(rb"(?im)^(host:[ \t]*)[^\r\n]*")
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d+)[ \t]*\r?$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding:[^\r\n]*\bchunked[ \t]*\r?$")
_UPGRADE = re.compile(rb"(?im)^upgrade:")
_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})")

RewriteState = Literal["head", "body", "size", "chunk", "trailer", "rest"]


class RequestHeadFilter:
    """Check and rewrite the heads of requests in one direction of one connection.

    policy: The hosts and origins that may use the relay; None allows all.
    host: Replaces the value of `Host` headers.
    headers: Added to every request.
    """

    __slots__ = ("_added", "_buffer", "_host", "_policy", "_remaining", "_state")

    def __init__(
        self,
        policy: BrowserPolicy | None = None,
        host: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        lines = (f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._added = "".join(lines).encode("latin-1")
        self._policy = policy
        self._host = None if host is None else host.encode("latin-1")
        self._state: RewriteState = "head"
        self._buffer = b""  # an incomplete head or line
        self._remaining = 0  # bytes left of a body or a chunk

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send for these. An incomplete head or line is buffered.

        Raise `Forbidden` for a request that is not allowed. Nothing may be sent after that.
        """
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
        """Consume a head, or a line between chunks, if it is complete. Returns the rest."""
        end = b"\r\n\r\n" if self._state == "head" else b"\r\n"
        end_index = data.find(end)
        if end_index < 0:
            if len(data) > MAX_HEAD_BYTES:
                if self._policy is not None and self._state == "head":
                    raise Forbidden(f"The head of a request exceeds {MAX_HEAD_BYTES} bytes.")
                self._state = "rest"
                return data
            self._buffer = data
            return b""
        end_index += len(end)
        line, rest = data[:end_index], data[end_index:]
        if self._state == "head":
            out.append(self._rewrite_head(line))
        else:
            out.append(line)
            self._read_chunk_line(line)
        return rest

    def _rewrite_head(self, head: bytes) -> bytes:
        if self._policy is not None:
            headers = _parse_headers(head)
            self._policy.require_host(headers, has_keys=False)
            self._policy.require_origin(headers, has_keys=False)
        length = _LENGTH.search(head)
        if _UPGRADE.search(head):
            self._state = "rest"
        elif _CHUNKED.search(head):
            self._state = "size"
        elif length is not None and int(length[1]):
            self._state, self._remaining = "body", int(length[1])
        host = self._host
        if host is not None:
            head = _HOST.sub(lambda line: line[1] + host, head, count=1)
        return head[:-2] + self._added + b"\r\n" if self._added else head

    def _read_chunk_line(self, line: bytes) -> None:
        """Parse a chunk size, the end of a chunk, or a line of a trailer."""
        if self._state == "trailer":
            if line == b"\r\n":
                self._state = "head"
            return
        if line == b"\r\n":  # after the data of a chunk
            return
        size = _SIZE.match(line)
        if size is None:
            self._state = "rest"
        elif int(size[1], 16):
            self._state, self._remaining = "chunk", int(size[1], 16)
        else:
            self._state = "trailer"


def _parse_headers(head: bytes) -> dict[str, str]:
    """Return the headers. Repeated ones are joined: all hosts must be allowed, and no origin is.

    The host of a URL in absolute form, which overrides the `Host` header, must be allowed, too.
    """
    headers: dict[str, str] = {}
    for name, value in _HEADER.findall(head):
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    url = _REQUEST_LINE.match(head)
    if url is not None:
        host = url[1].decode("latin-1")
        headers["host"] = f"{host}, {headers['host']}" if "host" in headers else host
    return headers
