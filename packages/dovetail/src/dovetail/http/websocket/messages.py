"""What a client sends over a socket: one kind of message, which asks for a response."""

from collections.abc import Mapping
from typing import Any

import msgspec

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
