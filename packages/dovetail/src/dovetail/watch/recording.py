"""Recordings: exchanges in a file of JSON lines, readable by its owner alone.

The first line says what it is. Each other line is an exchange: bodies as text where they are text,
else in base64; keys and cookies are left out.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dovetail.watch.exchange import CapturedExchange

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
