"""A request and its answer as they went over the wire."""

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec

#: Names of headers and of fields in an address whose values are never kept: whoever reads a
#: recording must not be able to ask in somebody's name. Better one too many than one too few.
_SECRET_NAME = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|jwt|^(sig|code)$", re.IGNORECASE
)
ResponderName = Literal["upstream", "dovetail"]


class CapturedExchange(msgspec.Struct, frozen=True):
    """A finished exchange. Bodies are without transfer and content encodings.

    Times are seconds: `began` since the epoch, the others since then. `asked` is when the request
    was complete. `marks` say how much of the answer had come when: pairs of a time and a number of
    bytes. `cut` says that the connection ended before the answer did.
    """

    number: int
    method: str
    target: str
    began: float
    asked: float
    ended: float
    status: int
    request_headers: dict[str, str]
    answer_headers: dict[str, str]
    request: bytes
    answer: bytes
    marks: tuple[tuple[float, int], ...] = ()
    cut: bool = False
    server: ResponderName = "upstream"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def codec(self) -> Codec | None:
        """The API that was spoken, if it is one of the three."""
        return find_codec(self.method, self.target)

    @property
    def has_failed(self) -> bool:
        """Whether nothing was generated: no prompt was computed then, as far as one can tell."""
        return self.status >= 400 or not self.status

    @property
    def is_streamed(self) -> bool:
        return self.answer_headers.get("content-type", "").startswith("text/event-stream")


def find_codec(method: str, target: str) -> Codec | None:
    """The codec of a request that a model answers; None for all others."""
    path = target.partition("?")[0].rstrip("/")
    if method != "POST":
        return None
    return next((codec for end, codec in _CODECS_BY_PATH.items() if path.endswith(end)), None)


def redact_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case, without those that hold a secret."""
    named = ((name.decode("latin-1").lower(), value) for name, value in headers)
    return {name: value.decode("latin-1") for name, value in named if not _SECRET_NAME.search(name)}


def redact_target(target: str) -> str:
    """A path and its query, without the values that are secret."""
    path, mark, query = target.partition("?")
    fields = (field.partition("=") for field in query.split("&"))
    kept = (
        name + ("=…" if _SECRET_NAME.search(name) else eq + value) for name, eq, value in fields
    )
    return path + mark + "&".join(kept)


_CODECS_BY_PATH: dict[str, Codec] = {
    "/v1/messages": MESSAGES,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
}


RECORDING_VERSION = 1
_BODY_FIELDS = ("request", "answer")


class RecordingError(ValueError):
    """A file that is no recording, or not one of ours."""


class ExchangeRecorder:
    """Writes exchanges as they end."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = _open_private(path, os.O_APPEND)
        if self._file.tell() == 0:
            self._write_line({"dovetail_recording": RECORDING_VERSION, "upstream": upstream})

    def write(self, exchange: CapturedExchange) -> None:
        fields = {name: getattr(exchange, name) for name in CapturedExchange.__struct_fields__}
        self._write_line(fields | {name: _encode_body(fields[name]) for name in _BODY_FIELDS})

    def close(self) -> None:
        self._file.close()

    def _write_line(self, value: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()


def write_private_file(path: Path, text: str) -> None:
    """A file that its owner alone can read: reports quote what was said."""
    with _open_private(path, os.O_TRUNC) as file:
        file.write(text.encode())


def _open_private(path: Path, how: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab" if how == os.O_APPEND else "wb")


def read_recording(path: Path) -> Iterator[CapturedExchange]:
    """The exchanges of a recording. A last line that was cut off is left out."""
    with path.open("rb") as file:
        first = file.readline()
        if _read_version(first) != RECORDING_VERSION:
            raise RecordingError(f"{path} is no recording of `dovetail watch --record`")
        for number, text in enumerate(file, 2):
            if not text.endswith(b"\n"):
                return
            try:
                yield _decode_exchange_line(text)
            except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
                raise RecordingError(f"{path}, line {number}: {error}") from error


def _read_version(line: bytes) -> object:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return value.get("dovetail_recording") if isinstance(value, dict) else None


def _decode_exchange_line(text: bytes) -> CapturedExchange:
    fields = msgspec.json.decode(text)
    for name in _BODY_FIELDS:
        fields[name] = _decode_body(fields[name])
    return msgspec.convert(fields, CapturedExchange)


def _encode_body(body: bytes) -> str | dict[str, str]:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _decode_body(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


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
