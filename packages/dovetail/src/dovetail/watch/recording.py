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

from dovetail.watch.exchange import Exchange

VERSION = 1
_BODIES = ("request", "answer")


class RecordingError(ValueError):
    """A file that is no recording, or not one of ours."""


class Recorder:
    """Writes exchanges as they end."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._file = _private(path, os.O_APPEND)
        if self._file.tell() == 0:
            self._write({"dovetail_recording": VERSION, "upstream": upstream})

    def add(self, exchange: Exchange) -> None:
        fields = {name: getattr(exchange, name) for name in Exchange.__struct_fields__}
        self._write(fields | {name: _written(fields[name]) for name in _BODIES})

    def close(self) -> None:
        self._file.close()

    def _write(self, value: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()


def write_private(path: Path, text: str) -> None:
    """A file that its owner alone can read: reports quote what was said."""
    with _private(path, os.O_TRUNC) as file:
        file.write(text.encode())


def _private(path: Path, how: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab" if how == os.O_APPEND else "wb")


def recorded(path: Path) -> Iterator[Exchange]:
    """The exchanges of a recording. A last line that was cut off is left out."""
    with path.open("rb") as file:
        first = file.readline()
        if _version(first) != VERSION:
            raise RecordingError(f"{path} is no recording of `dovetail watch --record`")
        for number, text in enumerate(file, 2):
            if not text.endswith(b"\n"):
                return
            try:
                yield _read(text)
            except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
                raise RecordingError(f"{path}, line {number}: {error}") from error


def _version(line: bytes) -> object:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return value.get("dovetail_recording") if isinstance(value, dict) else None


def _read(text: bytes) -> Exchange:
    fields = msgspec.json.decode(text)
    for name in _BODIES:
        fields[name] = _bytes(fields[name])
    return msgspec.convert(fields, Exchange)


def _written(body: bytes) -> str | dict[str, str]:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _bytes(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
