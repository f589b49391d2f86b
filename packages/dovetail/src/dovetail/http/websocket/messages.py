"""What a client sends over a socket: one kind of message, which asks for a response."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE
from dovetail_model import InvalidRequest, Unsupported

_Fields = dict[str, msgspec.Raw]
_decoder = msgspec.json.Decoder(_Fields)
_TRUE = b"true"
_MAX_STREAM_ID_CHARS = 128


class WebSocketRequest(msgspec.Struct, frozen=True):
    """A message. `body` is what the same request would be over HTTP, as a stream.

    `warms`: nothing is to be generated, the next message goes on from this one. `lane` keeps its
    messages in order, apart from those of other lanes. `told` are the headers of this very
    request: those of the connection are as old as the connection. `fault` is what is wrong with it.
    """

    body: bytes = b""
    stream_id: str | None = None
    warm_only: bool = False
    headers: Mapping[str, str] = {}
    error: Exception | None = None

    @property
    def size(self) -> int:
        return len(self.body)


def decode_message(data: str | bytes) -> WebSocketRequest:
    """A message as it came. Never raises: a fault is told where the answer would be."""
    try:
        return _decode_fields(data)
    except (InvalidRequest, Unsupported) as fault:
        return WebSocketRequest(error=fault)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return WebSocketRequest(error=InvalidRequest(f"The message is no JSON object: {error}"))


def _decode_fields(data: str | bytes) -> WebSocketRequest:
    fields = _decoder.decode(data)
    lane = _decode_stream_id(fields.pop("stream_id", None))
    try:
        return _build_request(fields, lane)
    except (InvalidRequest, Unsupported) as fault:
        return WebSocketRequest(stream_id=lane, error=fault)


def _build_request(fields: _Fields, lane: str | None) -> WebSocketRequest:
    kind = _decode_value(fields.pop("type", None))
    if kind != "response.create":
        raise InvalidRequest(
            "type: Expected response.create, the only message that is known here", param="type"
        )
    if _decode_value(fields.get("background")) is True:
        raise Unsupported("background: Not offered over WebSockets", param="background")
    generates = _decode_value(fields.pop("generate", None))
    if generates not in (None, True, False):
        raise InvalidRequest("generate: Expected a boolean", param="generate")
    warms = generates is False or _is_prewarm(_decode_value(fields.get("prompt_cache_options")))
    fields["stream"] = msgspec.Raw(_TRUE)  # there is no other way over a socket
    return WebSocketRequest(
        msgspec.json.encode(fields),
        lane,
        warms,
        _decode_metadata_headers(fields.get("client_metadata")),
    )


def _decode_stream_id(raw: msgspec.Raw | None) -> str | None:
    lane = _decode_value(raw)
    if lane is None:
        return None
    if not isinstance(lane, str) or not 0 < len(lane) <= _MAX_STREAM_ID_CHARS:
        raise InvalidRequest(
            f"stream_id: Expected a text of 1 to {_MAX_STREAM_ID_CHARS} characters",
            param="stream_id",
        )
    return lane


def _is_prewarm(options: Any) -> bool:
    return isinstance(options, dict) and options.get("prewarm") is True


def _decode_metadata_headers(raw: msgspec.Raw | None) -> dict[str, str]:
    """Headers that Codex puts into the message, since it has no others for it."""
    metadata = _decode_value(raw)
    if not isinstance(metadata, dict):
        return {}
    return {
        name.lower().removeprefix("ws_request_header_"): value
        for name, value in metadata.items()
        if isinstance(value, str)
    }


def _decode_value(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


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
    return status == 200 and (b"content-type", EVENT_STREAM_CONTENT_TYPE.encode()) in list(headers)


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
