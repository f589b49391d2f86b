"""Captured exchanges, and recordings of them."""

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec

#: Names of headers and query fields whose values are never stored: a recording must not contain
#: credentials. The list is generous on purpose.
_SECRET_NAME = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|jwt|^(sig|code)$", re.IGNORECASE
)
ResponderName = Literal["upstream", "dovetail"]


class CapturedExchange(msgspec.Struct, frozen=True):
    """A finished exchange. Bodies are without transfer and content encodings.

    Recordings store it under the encoded names. Times are seconds: `began` since the epoch, the
    others since then. `request_received` is when the request was complete. `marks` are pairs of a
    time and the number of response bytes received by then. `truncated`: the connection ended before
    the response.
    """

    number: int
    method: str
    target: str
    began: float
    request_received: float = msgspec.field(name="asked")
    ended: float
    status: int
    request_headers: dict[str, str]
    response_headers: dict[str, str] = msgspec.field(name="answer_headers")
    request: bytes
    response: bytes = msgspec.field(name="answer")
    marks: tuple[tuple[float, int], ...] = ()
    truncated: bool = msgspec.field(default=False, name="cut")
    server: ResponderName = "upstream"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def codec(self) -> Codec | None:
        """Codec of the request, if it belongs to one of the three APIs."""
        return find_codec(self.method, self.target)

    @property
    def has_failed(self) -> bool:
        """Whether nothing was generated; then, most likely, no prompt was computed."""
        return self.status >= 400 or not self.status

    @property
    def is_streamed(self) -> bool:
        return self.response_headers.get("content-type", "").startswith("text/event-stream")


def find_codec(method: str, target: str) -> Codec | None:
    """Return the codec of a generation request; None for all others."""
    path = target.partition("?")[0].rstrip("/")
    if method != "POST":
        return None
    return next((codec for end, codec in _CODECS_BY_PATH.items() if path.endswith(end)), None)


def redact_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers by lower-case name, without those that contain a secret."""
    decoded = ((name.decode("latin-1").lower(), value) for name, value in headers)
    return {
        name: value.decode("latin-1") for name, value in decoded if not _SECRET_NAME.search(name)
    }


def redact_target(target: str) -> str:
    """Return a path and its query, without secret values."""
    path, separator, query = target.partition("?")
    fields = (field.partition("=") for field in query.split("&"))
    redacted = (
        name + ("=…" if _SECRET_NAME.search(name) else eq + value) for name, eq, value in fields
    )
    return path + separator + "&".join(redacted)


_CODECS_BY_PATH: dict[str, Codec] = {
    "/v1/messages": MESSAGES,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
}


RECORDING_VERSION = 1
_BODY_FIELDS = ("request", "answer")
_RECORDED_NAMES = tuple(
    zip(
        CapturedExchange.__struct_fields__,
        CapturedExchange.__struct_encode_fields__,
        strict=True,
    )
)


class RecordingError(ValueError):
    """Raised for a file that is not a recording, or of another version."""


class ExchangeRecorder:
    """Append finished exchanges to a recording."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = _open_private(path, os.O_APPEND)
        if self._file.tell() == 0:
            self._write_line({"dovetail_recording": RECORDING_VERSION, "upstream": upstream})

    def write(self, exchange: CapturedExchange) -> None:
        fields = {encoded: getattr(exchange, name) for name, encoded in _RECORDED_NAMES}
        self._write_line(fields | {name: _encode_body(fields[name]) for name in _BODY_FIELDS})

    def close(self) -> None:
        self._file.close()

    def _write_line(self, value: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()


def write_private_file(path: Path, text: str) -> None:
    """Write a file that only its owner can read: reports quote conversations."""
    with _open_private(path, os.O_TRUNC) as file:
        file.write(text.encode())


def _open_private(path: Path, flag: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab" if flag == os.O_APPEND else "wb")


def read_recording(path: Path) -> Iterator[CapturedExchange]:
    """Read the exchanges of a recording. A truncated last line is skipped."""
    with path.open("rb") as file:
        first = file.readline()
        if _read_version(first) != RECORDING_VERSION:
            raise RecordingError(f"{path} is not a recording of `dovetail watch --record`")
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
