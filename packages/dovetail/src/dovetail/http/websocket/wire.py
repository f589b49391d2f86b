"""What goes over a socket: the events of a stream, each a message of its own, and errors."""

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.http.response import EVENT_STREAM_TYPE

RawHeaders = Iterable[tuple[bytes, bytes]]  # headers, as ASGI has them

_DATA = b"\ndata: "
_TYPE_FIELD = b'{"type":'
_DATA_WITH_TYPE = _DATA + _TYPE_FIELD
_EVENT = b"event: "
#: Of an error's headers, those that tell a client something about it.
_ERROR_HEADERS = ("retry-after", "x-ratelimit-", "x-request-id")


def split_messages(frames: bytes, suffix: bytes = b"") -> list[bytes]:
    """The messages that whole frames of an event stream stand for. Comments stand for none.

    `lane` is what the events of a lane have more, as the end of a JSON object.
    """
    found = []
    for part in frames.split(b"\n\n"):
        at = part.find(_DATA)
        if at < 0:
            continue
        data = part[at + 7 :]
        if not data.startswith(_TYPE_FIELD):  # the name of the event is told nowhere else then
            name = part[:at].removeprefix(_EVENT)
            data = _TYPE_FIELD + msgspec.json.encode(name.decode()) + b"," + data[1:]
        found.append(data[:-1] + suffix if suffix else data)
    return found


def single_message(frames: bytes) -> bytes | None:
    """The message of a frame that comes alone, as that of a token does; None where it is not so."""
    at = frames.find(b"\n")
    if frames.rfind(b"\n", 0, -2) != at or not frames.startswith(_DATA_WITH_TYPE, at):
        return None
    return frames[at + 7 : -2]


def encode_stream_suffix(stream_id: str | None) -> bytes:
    """What each event of this lane ends with."""
    return b"" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"


def encode_frame(message: bytes) -> bytes:
    """A message as a server puts it on the wire: one frame, of text."""
    size = len(message)
    return (
        _FRAME_HEADERS[size] if size < _CACHED_HEADERS else _encode_frame_header(size)
    ) + message


def _encode_frame_header(size: int) -> bytes:
    if size < 126:
        return b"\x81%c" % size
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


_CACHED_HEADERS = 1024  # bytes: the event of a token is smaller
_FRAME_HEADERS = [_encode_frame_header(size) for size in range(_CACHED_HEADERS)]


def is_event_stream(status: int, headers: RawHeaders) -> bool:
    """Whether an answer is a stream of events."""
    return status == 200 and (b"content-type", EVENT_STREAM_TYPE.encode()) in list(headers)


def encode_error_message(
    status: int, headers: RawHeaders, body: bytes, suffix: bytes = b""
) -> bytes:
    """An answer that is an error, as a message.

    Clients look for its headers in two places: beside the error (Codex) and in it (OpenAI's own).
    """
    error: dict[str, Any] = msgspec.json.decode(body)["error"]
    lines = {name.decode().lower(): value.decode() for name, value in headers}
    told = {name: value for name, value in lines.items() if name.startswith(_ERROR_HEADERS)}
    made = {"type": "error", "status": status, "error": {**error, "headers": told}, "headers": told}
    return msgspec.json.encode(made)[:-1] + (suffix or b"}")
