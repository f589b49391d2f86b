"""Messages of a WebSocket: decode requests, encode events and errors."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dovetail.http.diagnostics import encode_message, read_comment
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE
from dovetail_model import InvalidRequest, Unsupported

_Utf8Decoder = getincrementaldecoder("utf-8")
_Fields = dict[str, msgspec.Raw]
_decoder = msgspec.json.Decoder(_Fields)
_TRUE = b"true"
#: Larger messages are decoded in a thread, and received as bytes even if they are text.
MIN_LARGE_MESSAGE_BYTES = 1 << 18
_UTF8_SLICE_BYTES = 1 << 20  # decoded at a time: other threads can run in between
_MAX_STREAM_ID_CHARS = 128


class WebSocketRequest(msgspec.Struct, frozen=True):
    """A message with a request.

    body: Body of the equivalent HTTP request with `stream` set.
    stream_id: Messages with the same id are handled in order, independently of others.
    warm_only: Whether to generate no output; the next message continues this one.
    headers: Headers of this request, which replace those of the connection's handshake.
    error: Why the message is invalid.
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
    """Decode a message. Does not raise: an error is sent in place of the response."""
    try:
        return _decode_fields(data)
    except (InvalidRequest, Unsupported) as error:
        return WebSocketRequest(error=error)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return WebSocketRequest(error=InvalidRequest(f"The message is not a JSON object: {error}"))
    except Exception as error:
        return WebSocketRequest(error=error)


def _decode_fields(data: str | bytes) -> WebSocketRequest:
    if isinstance(data, bytes):
        _check_utf8(data)  # the decoder does not look into fields that it only splits
    fields = _decoder.decode(data)
    stream_id = _decode_stream_id(fields.pop("stream_id", None))
    try:
        return _build_request(fields, stream_id)
    except (InvalidRequest, Unsupported) as error:
        return WebSocketRequest(stream_id=stream_id, error=error)


def _build_request(fields: _Fields, stream_id: str | None) -> WebSocketRequest:
    kind = _decode_value(fields.pop("type", None))
    if kind != "response.create":
        raise InvalidRequest(
            "`type` must be `response.create`, the only supported message", param="type"
        )
    if _decode_value(fields.get("background")) is True:
        raise Unsupported("`background` is not supported over WebSockets", param="background")
    generate = _decode_value(fields.pop("generate", None))
    if generate not in (None, True, False):
        raise InvalidRequest("`generate` must be a boolean", param="generate")
    warm_only = generate is False or _is_prewarm(_decode_value(fields.get("prompt_cache_options")))
    fields["stream"] = msgspec.Raw(_TRUE)  # responses over WebSockets are always streams
    return WebSocketRequest(
        msgspec.json.encode(fields),
        stream_id,
        warm_only,
        _decode_metadata_headers(fields.get("client_metadata")),
    )


def _check_utf8(data: bytes) -> None:
    decoder = _Utf8Decoder()
    for at in range(0, len(data), _UTF8_SLICE_BYTES):
        decoder.decode(data[at : at + _UTF8_SLICE_BYTES])
    decoder.decode(b"", final=True)


def _decode_stream_id(raw: msgspec.Raw | None) -> str | None:
    stream_id = _decode_value(raw)
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not 0 < len(stream_id) <= _MAX_STREAM_ID_CHARS:
        raise InvalidRequest(
            f"`stream_id` must be a string of 1 to {_MAX_STREAM_ID_CHARS} characters",
            param="stream_id",
        )
    return stream_id


def _is_prewarm(options: Any) -> bool:
    return isinstance(options, dict) and options.get("prewarm") is True


def _decode_metadata_headers(raw: msgspec.Raw | None) -> dict[str, str]:
    """Return the headers that Codex puts into the message, which has no HTTP headers."""
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


RawHeaders = Iterable[tuple[bytes, bytes]]  # headers in ASGI's format

_DATA = b"\ndata: "
_TYPE_FIELD = b'{"type":'
_DATA_WITH_TYPE = _DATA + _TYPE_FIELD
_EVENT = b"event: "
#: Headers of an error response that are included in its message.
_ERROR_HEADERS = ("retry-after", "x-ratelimit-", "x-request-id")


def split_messages(frames: bytes, suffix: bytes = b"") -> list[bytes]:
    """Convert complete frames of an event stream to messages. Comments without notes are dropped.

    `suffix` replaces the closing brace of each JSON object, to add the stream id.
    """
    messages = []
    for frame in frames.split(b"\n\n"):
        at = frame.find(_DATA)
        if at < 0:
            if (notes := read_comment(frame)) is not None:
                messages.append(add_stream_id(encode_message(notes), suffix))
            continue
        data = frame[at + len(_DATA) :]
        if not data.startswith(_TYPE_FIELD):  # the type is only in the name of the event
            name = frame[:at].removeprefix(_EVENT)
            data = _TYPE_FIELD + msgspec.json.encode(name.decode()) + b"," + data[1:]
        messages.append(add_stream_id(data, suffix))
    return messages


def add_stream_id(message: bytes, suffix: bytes) -> bytes:
    """Replace the closing brace of a message by the suffix of its stream, if there is one."""
    return message[:-1] + suffix if suffix else message


def single_message(frames: bytes) -> bytes | None:
    """Return the message of a single frame, such as that of a token; None for several frames."""
    at = frames.find(b"\n")
    if frames.rfind(b"\n", 0, -2) != at or not frames.startswith(_DATA_WITH_TYPE, at):
        return None
    return frames[at + len(_DATA) : -2]


def encode_stream_suffix(stream_id: str | None) -> bytes:
    """Encode the `suffix` argument that adds a stream id to each message; empty without an id."""
    return b"" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"


def encode_frame(message: bytes) -> bytes:
    """Encode a message as one WebSocket text frame."""
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


_CACHED_HEADERS = 1024  # events of single tokens are smaller
_FRAME_HEADERS = [_encode_frame_header(size) for size in range(_CACHED_HEADERS)]


def is_event_stream(status: int, headers: RawHeaders) -> bool:
    """Return whether a response is an event stream."""
    return status == 200 and (b"content-type", EVENT_STREAM_CONTENT_TYPE.encode()) in list(headers)


def encode_error_message(
    status: int, headers: RawHeaders, body: bytes, suffix: bytes = b""
) -> bytes:
    """Encode an error response as a message.

    Clients expect its headers in two places: next to the error (Codex) and in it (OpenAI).
    """
    error: dict[str, Any] = msgspec.json.decode(body)["error"]
    lines = {name.decode().lower(): value.decode() for name, value in headers}
    error_headers = {
        name: value for name, value in lines.items() if name.startswith(_ERROR_HEADERS)
    }
    message = {
        "type": "error",
        "status": status,
        "error": {**error, "headers": error_headers},
        "headers": error_headers,
    }
    return msgspec.json.encode(message)[:-1] + (suffix or b"}")
