"""What goes over a socket: the events of a stream, each a message of its own, and errors."""

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.http.response import SSE

Lines = Iterable[tuple[bytes, bytes]]  # headers, as ASGI has them

_DATA = b"\ndata: "
_TYPED = b'{"type":'
_TYPED_DATA = _DATA + _TYPED
_EVENT = b"event: "
#: Of an error's headers, those that tell a client something about it.
_TOLD = ("retry-after", "x-ratelimit-", "x-request-id")


def messages(frames: bytes, lane: bytes = b"") -> list[bytes]:
    """The messages that whole frames of an event stream stand for. Comments stand for none.

    `lane` is what the events of a lane have more, as the end of a JSON object.
    """
    found = []
    for part in frames.split(b"\n\n"):
        at = part.find(_DATA)
        if at < 0:
            continue
        data = part[at + 7 :]
        if not data.startswith(_TYPED):  # the name of the event is told nowhere else then
            name = part[:at].removeprefix(_EVENT)
            data = _TYPED + msgspec.json.encode(name.decode()) + b"," + data[1:]
        found.append(data[:-1] + lane if lane else data)
    return found


def lone_message(frames: bytes) -> bytes | None:
    """The message of a frame that comes alone, as that of a token does; None where it is not so."""
    at = frames.find(b"\n")
    if frames.rfind(b"\n", 0, -2) != at or not frames.startswith(_TYPED_DATA, at):
        return None
    return frames[at + 7 : -2]


def lane_of(stream_id: str | None) -> bytes:
    """What each event of this lane ends with."""
    return b"" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"


def framed(message: bytes) -> bytes:
    """A message as a server puts it on the wire: one frame, of text."""
    size = len(message)
    return (_HEADS[size] if size < _USUAL else _head(size)) + message


def _head(size: int) -> bytes:
    if size < 126:
        return b"\x81%c" % size
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


_USUAL = 1024  # bytes: the event of a token is smaller
_HEADS = [_head(size) for size in range(_USUAL)]


def streams(status: int, headers: Lines) -> bool:
    """Whether an answer is a stream of events."""
    return status == 200 and (b"content-type", SSE.encode()) in list(headers)


def error_message(status: int, headers: Lines, body: bytes, lane: bytes = b"") -> bytes:
    """An answer that is an error, as a message.

    Clients look for its headers in two places: beside the error (Codex) and in it (OpenAI's own).
    """
    error: dict[str, Any] = msgspec.json.decode(body)["error"]
    lines = {name.decode().lower(): value.decode() for name, value in headers}
    told = {name: value for name, value in lines.items() if name.startswith(_TOLD)}
    made = {"type": "error", "status": status, "error": {**error, "headers": told}, "headers": told}
    return msgspec.json.encode(made)[:-1] + (lane or b"}")
